"""A worker of a shape of `bench.card.shapes`, whose random weights are made on its device; no folder is needed.

    python -m bench.card.worker --model llama3_8b --model-name m --accelerator cuda \\
        --context-length 2048 --kv-cache-tokens 86016 --max-sequences 64

It is the product's own worker, and so is its engine but for the weights: these are the same in every such process,
clients send token ids, and what a model's file would decide (the three options above) has to be named.
"""

from polyfleet.process.signals import end_at_signals

if __name__ == "__main__":
    end_at_signals()  # as in the worker's own: while the rest is imported, too

from polyfleet.serving import engine_client
from polyfleet.serving.command import main

ENGINE = "bench.card.served"

if __name__ == "__main__":
    engine_client.MODULE = ENGINE
    main(prog_name="python -m bench.card.worker")
