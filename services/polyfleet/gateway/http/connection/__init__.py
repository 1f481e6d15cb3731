"""HTTP/1.1 connections: uvicorn within bounds."""
