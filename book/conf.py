"""How Sphinx sets the book; `python -m press site` calls it."""

project = "Attention, Annotated"
author = "the authors of Attention, Annotated"
html_title = project

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "press.pages",  # what folds, and the head of a page
]
exclude_patterns = ["_static/README.md", "beside"]  # see press/beside.py

# the press has executed the chapters already
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # with tables
nb_ipywidgets_js = {}  # by default MyST-NB loads these from another host
nb_mime_priority_overrides = [
    (builder, kind, priority)
    for builder in ("html", "proof")
    for kind, priority in (
        ("image/svg+xml", 10),
        ("image/png", 20),
        ("text/html", 30),
    )
]

myst_enable_extensions = [
    "amsmath",
    "attrs_block",
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
]
myst_heading_anchors = 4
# the reference: many parameters have a line each, types their short names
maximum_signature_line_length = 72
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
# code, not what it prints; the theme puts this between single quotes
copybutton_selector = (
    "div[class*=highlight-]:not(.output) > div.highlight > pre"
)

# formulas are set here, not in the browser: see press/formulas.py
html_math_renderer = "mathml"
myst_update_mathjax = False

html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
html_favicon = "_static/logo.svg"
html_logo = "_static/logo.svg"
html_copy_source = False
html_use_index = False  # api-names.md is one
html_domain_indices = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": project},
    "show_toc_level": 2,
    "navigation_depth": 1,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "use_repository_button": True,
    "navbar_persistent": [],
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "github-dark",
}

# the story to take away: `make epub`; press.reader does the rest
epub_copyright = "the authors; MIT licence"
epub_basename = epub_uid = epub_identifier = "attention-annotated"
epub_contributor = author
epub_cover = ("_static/cover.png", "epub-cover.html")
epub_css_files = ["epub.css"]
epub_scheme = "URL"
epub_show_urls = "no"
epub_tocdup = False
epub_tocscope = "includehidden"
epub_use_index = False

# the lexer of WebAssembly's text knows no vectors
suppress_warnings = ["misc.highlighting_failure"]
