"""A YAML file goes in, a frozen recipe comes out: the whole vocabulary of an experiment, with all problems
reported at once."""

from edgedistill.recipe import recorded, yaml_file
from edgedistill.recipe.experiment import *
from edgedistill.recipe.objectives import *
from edgedistill.recipe.reading import *
from edgedistill.recipe.rows import *
from edgedistill.recipe.section import *
from edgedistill.recipe.stages import *
from edgedistill.recipe.students import *
from edgedistill.recipe.teacher import *
