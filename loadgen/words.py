"""Short common English words, each of which is one token of its own in the usual byte-pair vocabularies."""

from __future__ import annotations

_TEXT = """
    the and for that you are can from was not this have your they will which more other has man about
    but out one were also part who into these some when his our may time under than over people like
    help act year been use new what would need through work any import had off most only first child
    system between two where learn should her well every high world even form water sign just make data
    call see then result those way each because effect while process during found art count long after
    read lead fact test life very being own she find right back students both follow does grow car min
    much main before study great end food start children good might school within class often around
    made said show same too power research design again small allow care example down take support human
    treat now state called point number build play though body did must plan common want met three cell
    pass let social govern method real without still public change better hand another material report
    place learning interest present project list product feel light open mean few keep others best face
    include direct name history create top perform home stand move among mark look things large think
    air function against law group means rest control here based women pain area tree family due object
    old current try program begin early lab together focus access last unit disease risk success making
    print low say impact key period run land blood case since specific local head post along value order
    come text cost times areas able problem view major course model else prevent press hard line tool
    special future natural plant complex language role until second country men young works always
    suggest exist problems put step today given strong little range age ways business book next far four
    similar short working past space amount free concept heart
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
