#!/usr/bin/env bash
# The llm command: a prompt, and a second one that continues the conversation.
#   pip install llm
#   eval "$(openclaw-rl connect env)" && examples/clients/llm_command.sh
set -euo pipefail

folder=$(llm logs path | xargs dirname)
mkdir -p "$folder"
cat >"$folder/extra-openai-models.yaml" <<YAML
- model_id: openclaw-rl
  model_name: $OPENAI_MODEL
  api_base: $OPENAI_BASE_URL
  api_key_name: openclaw-rl
YAML
llm keys set openclaw-rl --value "$OPENAI_API_KEY"

llm -m openclaw-rl -o max_tokens 24 "Name three colours."
llm -c -o max_tokens 24 "Which one is warm?"
