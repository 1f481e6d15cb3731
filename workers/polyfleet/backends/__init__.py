"""One module per accelerator behind one HardwareBackend protocol, and the registry that finds them."""
