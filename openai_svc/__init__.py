"""The OpenAI front door: HTTP in OpenAI's form, answered by an orchestrator over gRPC."""
