"""The paged KV cache: BlockPool, PrefixIndex and the tensors behind them."""
