"""The console: the fleet, its models and a chat in a browser; a window on `Fleet` and `Inference`, nothing behind it.

`access` knows who looks, `fleet` keeps what there is to see, `pages` answer, with `templates` and `static`.
"""
