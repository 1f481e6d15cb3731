"""What suits a model on a device: the device opened, every size chosen, the first executor that passes its trial."""
