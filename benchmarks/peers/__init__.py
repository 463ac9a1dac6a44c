"""Other load generators and ours, side by side against the reference server (README.md of this folder).

``envs`` installs them, ``tool`` says what they have in common, ``vllm_bench``, ``aiperf``, ``guidellm`` and
``ours`` start one each and read what it reports; ``truth`` reads the server's own log, ``measure`` joins the
two into a row, ``session`` makes all rows, ``rows`` and ``picture`` show them.
"""
