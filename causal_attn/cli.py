"""The command `causal-attn`: parses, runs the study, writes the report, prints. All work is done elsewhere.

Exit status: 0 done, 1 the work failed, 2 the request was wrong. One line on stderr for a wrong request.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import causal_attn
from causal_attn.errors import CausalAttnError, DataError, InputError, MissingExtraError, OutputError

WRONG_REQUEST = (InputError, DataError, MissingExtraError, OutputError)


class Parser(argparse.ArgumentParser):
    """argparse with one line for a wrong request: no usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def _parser() -> Parser:
    parser = Parser(
        prog="causal-attn",
        description="Does your attention leak the answer through the mask, and can weighting or retraining repair it?",
    )
    parser.add_argument("--version", action="version", version=f"causal-attn {causal_attn.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_study(commands.add_parser("study", help="train, test for the shortcut, retrain under Q, compare, report"))
    _add_diagnose(commands.add_parser("diagnose", help="leakage, weights, balance and support of masks from a file"))
    commands.add_parser("data", help="the data sets that can be loaded, and whether each is installed")
    report = commands.add_parser("report", help="write the report of a results directory again")
    report.add_argument("dir", metavar="DIR", help="a directory with results.json")
    return parser


def _add_study(study: argparse.ArgumentParser) -> None:
    """Defaults are those of `StudyConfig`: an option that is not given is not passed on."""
    add = lambda *names, **kwargs: study.add_argument(*names, default=argparse.SUPPRESS, **kwargs)  # noqa: E731
    add("--data", metavar="NAME|PATH", help="a known set, or CSV, TSV, JSONL, Parquet with columns text,label "
        "(default: rotten_tomatoes)")  # fmt: skip
    add("--downstream", metavar="PART", help="recurrent, pooled or concatenated (default: recurrent)")
    add("--schemes", metavar="A,B,...", help="out of erm, weighted, weights-only, random, matched, warm, "
        "warm-weighted, alternating, penalty (default: erm,weighted,random,warm)")  # fmt: skip
    add("--default-tokens", type=int, metavar="N", help="tokens put before every text, the same in every text (5)")
    add("--word-dropout", type=float, metavar="P", help="share of words hidden from the downstream part only, in "
        "training (0.5)")  # fmt: skip
    add("--seeds", type=int, metavar="N", help="number of seeds (1)")
    add("--epochs", type=int, metavar="N", help="epochs of joint training (5); other phases take their share of it")
    add("--limit", type=int, metavar="ROWS", help="use only this many rows")
    add("--max-tokens", type=int, metavar="N", help="use only the first N tokens of a text")
    add("--k", type=int, metavar="K", help="positions kept for the accuracies at k (5)")
    add("--permutations", type=int, metavar="N", dest="n_permutations", help="of the leakage test (200)")
    add("--device", metavar="DEVICE", help="auto, cpu, cuda (auto)")
    study.add_argument("--out", metavar="DIR", default="study", help="where the results go (default: study)")
    study.add_argument("--resume", action="store_true", help="use the finished cells of an interrupted run")
    study.add_argument("--quiet", action="store_true", help="no progress bars")


def _add_diagnose(diagnose: argparse.ArgumentParser) -> None:
    diagnose.add_argument("file", metavar="FILE", help=".npz or .safetensors with masks and y; or .csv, .tsv, .parquet "
        "with columns label, m0, m1, ... and perhaps group (an empty cell: no such position)")  # fmt: skip
    diagnose.add_argument("--out", metavar="DIR", help="write weights, tables, ArviZ files and figures there")
    diagnose.add_argument("--permutations", type=int, default=200, metavar="N", help="of the leakage test (200)")
    diagnose.add_argument("--folds", type=int, default=5, metavar="N", help="of the cross-fit (5)")
    diagnose.add_argument("--seed", type=int, default=0, metavar="N", help="of folds and permutations (0)")
    diagnose.add_argument("--tau", type=float, default=10.0, metavar="W", help="weights above W are out of reach (10)")
    diagnose.add_argument(
        "--normalise", action="store_true", help="divide each row by its sum, where that is 1 within 2%%"
    )
    diagnose.add_argument("--quiet", action="store_true", help="no progress bars")


def _diagnose(args: argparse.Namespace) -> int:
    import warnings

    from causal_attn.data.mask_files import read_masks
    from causal_attn.errors import SupportWarning
    from causal_attn.report import draw_diagnosis
    from causal_attn.selection import SelectionModel
    from causal_attn.study import diagnose

    sample, names = read_masks(args.file, args.normalise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SupportWarning)  # the printed words say the same
        found = diagnose(
            sample, names, SelectionModel(tau=args.tau), args.folds, args.permutations, args.seed, not args.quiet
        )
        print(found)
        if args.out is not None:
            draw_diagnosis(found, found.save(args.out))
            print(f"\nWritten to {args.out}; docs/trust.md says what good and bad look like")
    return 0


def _study(args: argparse.Namespace) -> int:
    from causal_attn import report
    from causal_attn.study import StudyConfig, run_study

    options = {k: v for k, v in vars(args).items() if k not in ("command", "out", "resume", "quiet")}
    if "schemes" in options:
        options["schemes"] = tuple(name.strip() for name in options["schemes"].split(","))
    result = run_study(StudyConfig(**options), args.out, resume=args.resume, progress=not args.quiet)
    return _show(report.write(result.out))


def _report(args: argparse.Namespace) -> int:
    from causal_attn import report

    return _show(report.write(args.dir))


def _show(page: Path) -> int:
    """The table, the verdict and where the page is."""
    from causal_attn import report

    results = report.read_results(page.parent)
    print(report.text_table(results))
    print()
    print(report.text_verdict(results))
    print(f"\n{page}")
    return 0


def _data(args: argparse.Namespace) -> int:
    from causal_attn import data

    print(data.describe().to_string(index=False))
    return 0


OPTIONS = ("data", "downstream", "schemes", "default_tokens", "word_dropout", "seeds", "epochs", "limit", "max_tokens",
           "k", "n_permutations", "device", "out", "folds", "seed", "tau", "normalise")  # fmt: skip


def _as_option(message: str) -> str:
    """An argument's name at the head of a message, as the option a person typed."""
    head, colon, rest = message.partition(":")
    known = {"name": "data", "n_permutations": "permutations"}
    if colon and (head in OPTIONS or head == "name"):
        return f"--{known.get(head, head).replace('_', '-')}:{rest}"
    return message


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "study": _study, "diagnose": _diagnose, "report": _report, "data": _data,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    with contextlib.suppress(ValueError):  # signals can be set in the main thread alone
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill cleans up as Ctrl-C does
    args = _parser().parse_args(argv)
    try:
        return COMMANDS[args.command](args)
    except WRONG_REQUEST as error:
        print(f"causal-attn: {_as_option(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except CausalAttnError as error:
        print(f"causal-attn: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output went away: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("causal-attn: interrupted; finished parts are kept, --resume goes on from them", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
