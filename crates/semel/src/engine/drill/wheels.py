"""Writes leaf 1.0 and leaf 2.0 as wheels into the directory that is named."""
import base64, hashlib, os, sys, zipfile

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
for number in ("1", "2"):
    version = number + ".0"
    info = f"leaf-{version}.dist-info"
    files = {
        "leaf.py": f"LIMIT = {number}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: leaf\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: drill\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(f"{out}/leaf-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), text)
