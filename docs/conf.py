"""How `make docs` makes the site: Sphinx, with pages in Markdown. See decisions/site.md."""

project = "multistage"
author = "the authors of multistage"
extensions = ["myst_parser", "sphinxcontrib.mermaid", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "multistage"
exclude_patterns = ["tools"]

# Headings can be linked to as on GitHub; ```mermaid is a drawing, as there.
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

# The API page is made from docstrings; nothing heavy is imported for it.
autodoc_member_order = "bysource"
autodoc_typehints = "description"
