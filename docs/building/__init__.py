"""How the pages become a site: `docs/conf.py` hands them to Sphinx. `pages` needs no Sphinx."""
