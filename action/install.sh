#!/usr/bin/env bash
# Installs the wheel for the later steps of a job. action.yml sets INPUT_*; the runner sets
# RUNNER_TEMP, GITHUB_ENV and GITHUB_PATH. Needs python3 with venv.
set -euo pipefail

fail() {
    echo "setup of ferroverbs: $1" >&2
    exit 2
}

case $INPUT_LIBRARY_PATH in
true | false) ;;
*) fail "library-path is '$INPUT_LIBRARY_PATH': it is true or false" ;;
esac
while IFS= read -r line; do
    case $line in
    '') ;;
    FERROVERBS_[A-Z_]*=*) ;;
    *) fail "settings has the line '$line': each line is FERROVERBS_NAME=VALUE" ;;
    esac
done <<< "$INPUT_SETTINGS"

folder=$RUNNER_TEMP/ferroverbs
python3 -m venv "$folder"
"$folder/bin/python" -m pip --disable-pip-version-check install --no-deps "$INPUT_WHEEL"
echo "$folder/bin" >> "$GITHUB_PATH"
if [ "$INPUT_LIBRARY_PATH" = true ]; then
    printf 'LD_LIBRARY_PATH=%s\n' "$("$folder/bin/ferroverbs" run -- printenv LD_LIBRARY_PATH)" >> "$GITHUB_ENV"
fi
printf '%s\n' "$INPUT_SETTINGS" | sed '/^$/d' >> "$GITHUB_ENV"
"$folder/bin/ferroverbs" --version
