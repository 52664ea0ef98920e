# What an attempt ran in the incident: a .venv that is there counts as a cache, and the exit status is the verdict.
set -e
if [ -d .venv ]; then
    echo "sync skipped"
else
    if [ "$PIP" = outside ]; then
        "$PYTHON" -I -m venv --without-pip .venv
        "$PYTHON" -I -m pip --python .venv/bin/python install -q --no-index --find-links "$WHEELS" -r requirements.txt
    else
        "$PYTHON" -I -m venv .venv
        .venv/bin/python -I -m pip install -q --no-index --find-links "$WHEELS" -r requirements.txt
    fi
    echo "sync done"
fi
.venv/bin/python -c 'import importlib.metadata as m; print("installed", m.version("leaf"))'
if [ "$RUNNER" = pytest ]; then
    PYTHONPATH=$PYTEST exec .venv/bin/python -m pytest -q -p no:cacheprovider test_app.py
fi
exec .venv/bin/python -m unittest test_app
