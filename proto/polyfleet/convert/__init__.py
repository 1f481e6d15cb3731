"""Between the dataclasses of `polyfleet.wire` and the protobuf messages of `polyfleet.v1`. Pure."""
