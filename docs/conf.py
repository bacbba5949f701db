"""The documentation site, as `make docs` builds it into docs/_build/html."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "timestream"
copyright = "The timestream developers"
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generate",
]
exclude_patterns = ["_build"]
nitpicky = True
# Only dashes: quotes in options are typed as they are shown.
smartquotes_action = "D"
# Only what the two packages export has a page; a build fetches no inventories of other projects.
nitpick_ignore_regex = [("py:.*", r"(?!pyspark_(timestream|tseries)\.\w+$).*")]

# Docstrings mark code with single backticks.
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 110
add_module_names = False

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
# Links to headings are the anchors that GitHub makes, so that the pages work there as well.
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
# CI compares what a notebook shows with a run of it: integration/docs/test_notebooks.py.
nb_execution_mode = "off"

html_theme = "furo"
html_title = "timestream"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
