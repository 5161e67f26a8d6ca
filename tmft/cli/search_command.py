"""Print the lines of a text file whose embeddings are nearest to that of a query.

    python -m tmft search runs/<name> "music for one guitar" --corpus sentences.txt
    python -m tmft search runs/<name> "music for one guitar" --corpus sentences.txt --vectors vectors.npy
    python -m tmft search sentence-transformers/all-MiniLM-L6-v2 "a query" --corpus sentences.txt.gz
    python -m tmft search runs/<name> "a query" --corpus reviews.csv --column text --vectors vectors.npy

The ten most similar lines are printed with their similarity to the query, the highest first. It is the
cosine, unless the model was saved with another similarity function. Without --vectors all lines are embedded
for each query. Control characters of the text are printed as "?".

A model that has a prompt named query or document gets the first with the query and the second with each line.
With another model, both get its default prompt, if it has one. --prompt and --prompt-name replace the prompts
of both, --query-prompt and --query-prompt-name that of the query alone: "[X]" is no prompt. The prompts that
are used are printed on stderr.
"""

import sys
from argparse import Namespace
from pathlib import Path

from tmft.cli.options import add_embedding_options, add_model_options, command_device, load_model
from tmft.cli.parser import CommandLineParser
from tmft.embedding.prompts import choose_prompt, parse_prompt
from tmft.io.formatting import without_control_characters
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.search import nearest_lines, retrieval_prompts
from tmft.speed.matmul import prepacked_weights


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    model = load_model(args, command_device(args.device))
    query_prompt, document_prompt = prompts = search_prompts(args, model)
    if any(prompts):
        query, line = (without_control_characters(repr(prompt)) for prompt in prompts)
        print(f"prompt of the query {query}, of the lines {line}", file=sys.stderr)
    with prepacked_weights(model.encoder):
        lines = nearest_lines(
            model,
            args.query,
            args.corpus,
            vectors=args.vectors,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            column=args.column,
        )
    for similarity, line in lines:
        print(f"{similarity:.4f}  {without_control_characters(line)}")


def search_prompts(args: Namespace, model: SentenceEncoder) -> tuple[str, str]:
    """Return the prompts of the query and of the lines. model: the model of `load_model`."""
    query_prompt = document_prompt = None
    if args.prompt or args.prompt_name:
        query_prompt = document_prompt = model.prompt
    if args.query_prompt:
        query_prompt = parse_prompt(args.query_prompt, "query_prompt")
    elif args.query_prompt_name:
        query_prompt = choose_prompt(
            model.prompts, None, args.query_prompt_name, parameter="query_prompt_name"
        )
    return retrieval_prompts(model, query_prompt, document_prompt)


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p, int8=True)
    p.add_argument("query", metavar="QUERY", help="text to search for")
    p.add_argument("--corpus", type=Path, metavar="FILE", required=True, help="text with a sentence per "
                   "line, also .gz or .xz")
    p.add_argument("--column", metavar="NAME", help="column of the texts, if --corpus is a table: .csv, "
                   ".tsv, .jsonl or .parquet")
    p.add_argument("--vectors", type=Path, metavar="FILE.npy", help="embeddings of the lines of --corpus, "
                   "written by encode with the same model and options, which is checked (for a model with a "
                   "prompt named document: encode --prompt-name document); default: every line is embedded")
    add_embedding_options(p)
    group = p.add_argument_group("prompt of the query alone")
    group.add_argument("--query-prompt", metavar="TEXT", help="text around the query, a template with [X] as "
                       "in --prompt; default: that of --query-prompt-name")
    group.add_argument("--query-prompt-name", metavar="NAME", help="use the prompt of this name with the "
                       "query; default: query, if the model has a prompt named query or document")
    p.exclude("query_prompt", "query_prompt_name")
    return p.parse_args(argv)
# fmt: on
