#!/bin/sh
# Calls from a shell with grpcurl (https://github.com/fullstorydev/grpcurl): grpcurl.sh [HOST:PORT]
# Server reflection is on, so no protos are needed. Bytes read and write as base64.
set -eu
address=${1:-127.0.0.1:50051}

grpcurl -plaintext "$address" list
grpcurl -plaintext "$address" describe outrider.v1.GenerateRequest

grpcurl -plaintext -d '{"service": ""}' "$address" grpc.health.v1.Health/Check

grpcurl -plaintext -d '{}' "$address" outrider.v1.GenerationService/GetServerInfo

grpcurl -plaintext -d '{"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_tokens": 16}}' "$address" outrider.v1.GenerationService/Generate

grpcurl -plaintext -H 'x-request-id: from-a-shell' -max-time 60 -d '{"chat": {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}, "sampling_params": {"temperature": 0.8, "seed": 7, "max_tokens": 32}, "speculation": {"sources": ["ngram"], "num_draft_tokens": 4}}' "$address" outrider.v1.GenerationService/Generate

grpcurl -plaintext -d '{"tokenized": {"input_ids": [1, 2, 3]}, "sampling_params": {"max_tokens": 8, "stop": ["."], "logprobs": 2}}' "$address" outrider.v1.GenerationService/Generate

grpcurl -plaintext -d '{"text": "Ids are taken as they are."}' "$address" outrider.v1.GenerationService/Tokenize
