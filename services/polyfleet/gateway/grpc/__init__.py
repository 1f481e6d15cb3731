"""The gRPC front end of the gateway: messages in, `GenerationApi`, messages and statuses out."""
