"""Kinds of suites, one module each: the section of a task in suite.yaml reads its files, what it reads scores
an encoder."""

from edgedistill.evaluation.suites.labelled_task import TaskOfRecipe
from edgedistill.evaluation.suites.mteb_task import MtebTask
from edgedistill.evaluation.suites.retrieval import BitextFile, RetrievalFolder
from edgedistill.evaluation.suites.sts import PairTables, StsFile
from edgedistill.evaluation.suites.suite_files import Task
from edgedistill.evaluation.suites.transfer import TransferFolder

FAMILIES: dict[str, type[Task]] = {
    "sts": StsFile,  # graded similarity: STS-B, STS2017, …
    "retrieval": RetrievalFolder,  # nDCG@10
    "bitext": BitextFile,  # finding translations
    "transfer": TransferFolder,  # SentEval: a linear classifier on embeddings
    "pair_classification": PairTables,  # zero-shot, by a threshold on the cosine
    "mteb": MtebTask,  # a task of mteb, by its own evaluator
    "task": TaskOfRecipe,  # a fine-tuned bundle on its own task
}
FLOAT32_ALONE = ("mteb", "task")  # kinds that are scored in no other precision of embeddings
