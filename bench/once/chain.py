"""The longest chain of sync intervals that wait for each other in one call, from `strace -ttt -T -f`.

Two syncs that overlap in time go to the disk together; two that do not have been waited for one after the other. The
longest set of intervals no two of which overlap is what a call waits for.

usage: chain.py FILE    prints the intervals and the length of the chain
>>> text = '''7 10.000 fdatasync(4) = 0 <0.010>
... 8 10.001 fsync(5 <unfinished ...>
... 7 10.012 fsync(6) = 0 <0.010>
... 8 10.015 <... fsync resumed>) = 0 <0.014>
... 7 10.030 fdatasync(4) = 0 <0.002>
... 7 10.040 write(1, "fsync(9) = 0 <0.1>", 3) = 3 <0.001>'''
>>> [(name, round(end - start, 3)) for start, end, name in syncs(text)]
[('fdatasync', 0.01), ('fsync', 0.014), ('fsync', 0.01), ('fdatasync', 0.002)]
>>> longest(syncs(text))
3
>>> longest([(0, 9, 'fsync'), (1, 2, 'fsync'), (3, 4, 'fsync'), (4, 5, 'fsync')])
3
>>> longest([])
0
"""
import re, sys

NAMES = "fsync|fdatasync|syncfs|sync_file_range|sync|msync"
WHOLE = re.compile(rf"^(?:\[pid +)?(\d+)\]? +([\d.]+) ({NAMES})\(.*<([\d.]+)>$")
RESUMED = re.compile(rf"^(?:\[pid +)?(\d+)\]? +([\d.]+) <\.\.\. ({NAMES}) resumed>.*<([\d.]+)>$")
BEGUN = re.compile(rf"^(?:\[pid +)?(\d+)\]? +([\d.]+) ({NAMES})\(.*<unfinished \.\.\.>$")


def syncs(text):
    """Gives (start, end, name) of every sync, by its start."""
    found, begun = [], {}
    for line in text.splitlines():
        if m := WHOLE.match(line):
            start = float(m[2])
            found.append((start, start + float(m[4]), m[3]))
        elif m := BEGUN.match(line):
            begun[m[1]] = float(m[2])
        elif m := RESUMED.match(line):
            start = begun.pop(m[1], None)
            start = float(m[2]) if start is None else start
            found.append((start, start + float(m[4]), m[3]))
    return sorted(found)


def longest(intervals):
    """Gives the size of the largest set of intervals that do not overlap: by earliest end."""
    count, free = 0, float("-inf")
    for start, end, _ in sorted(intervals, key=lambda interval: interval[1]):
        if start >= free:
            count, free = count + 1, end
    return count


if __name__ == "__main__":
    found = syncs(open(sys.argv[1]).read())
    for start, end, name in found:
        print(f"{start:.6f} {(end - start) * 1e3:8.3f} ms {name}")
    print(f"{len(found)} syncs, longest chain {longest(found)}")
