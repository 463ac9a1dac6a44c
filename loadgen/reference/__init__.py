"""A scripted server that knows when it wrote each token, to certify load generators against (C42).

``script`` says what it does, ``timetable`` when, ``wire`` in which words, ``framing`` in which bytes;
``answers`` puts these together for one request, ``server`` writes them on time, ``log`` keeps the stamps,
``process`` and ``group`` run it as processes of their own.
"""
