"""The harness: dialogues, judgements, statistics, reports. Importing it never imports torch, vllm or deepspeed."""
