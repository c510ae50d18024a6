// SPDX-License-Identifier: Apache-2.0

package pull

// lazyProgram is a program of the image whose first output, or end, is awaited.
type lazyProgram struct {
	name, meaning string
	argv          []string
}

// training fits a model with a library for it. The small image lacks that library: there, the program imports other
// libraries and fits the model by hand.
const training = `
try:
    import numpy as np, scipy.optimize, lightgbm
    r = np.random.default_rng(1)
    x = r.standard_normal((20000, 40))
    y = x @ r.standard_normal(40) + r.standard_normal(20000)
    m = lightgbm.train({"verbose": -1, "num_threads": 2}, lightgbm.Dataset(x, y), 60)
    print("lightgbm", float(np.mean((m.predict(x) - y) ** 2)))
except (ImportError, OSError) as missing:
    import random, sympy, networkx
    r = random.Random(1)
    x = [[r.gauss(0, 1) for _ in range(10)] for _ in range(2000)]
    y = [sum(a) + r.gauss(0, 1) for a in x]
    w = [0.0] * 10
    for _ in range(50):
        e = [sum(a * b for a, b in zip(w, row)) - t for row, t in zip(x, y)]
        for i in range(10):
            w[i] -= 2e-4 * sum(d * row[i] for d, row in zip(e, x))
    print("by hand", sum(d * d for d in e) / len(e))
`

// readAll reads every file of the image.
const readAll = `
import os
n = 0
for dir, _, names in os.walk("/"):
    for name in names:
        path = os.path.join(dir, name)
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as f:
                while data := f.read(1 << 20):
                    n += len(data)
print(n)
`

const python = "/usr/bin/python3"

// lazyPrograms are the programs in Table 1 of the report that this experiment repeats. The image has no /bin/sh.
var lazyPrograms = []lazyProgram{
	{"sh", "a shell prints a line", []string{"/usr/bin/bash", "-c", "echo started"}},
	{"print", "python3 -c 'print(__name__)'", []string{python, "-c", "print(__name__)"}},
	{"train", "a training run", []string{python, "-c", training}},
	{"all", "every file is read", []string{python, "-c", readAll}},
}

// learnt are the programs for which the image is optimised, without the one that reads every file, as no service does
// at its start.
var learnt = lazyPrograms[:3]

// Kinds of lazy pulls.
const (
	// LazyStock is containerd's overlayfs, and the image in gzip.
	LazyStock = "stock"
	// Lazy is wangell-snapshotter, and the image in Params.LazyFormat.
	Lazy = "lazy"
	// Optimised is the same with the image that image optimise makes.
	Optimised = "optimised"
)

var lazyKinds = []string{LazyStock, Lazy, Optimised}

// lazyTags are the tags of the images of each kind.
var lazyTags = map[string]string{LazyStock: original, Lazy: "lazy", Optimised: "optimised"}

// LazyRun is a pull, and a program after it. Times are in seconds.
type LazyRun struct {
	Round   int    `json:"round"`
	Program string `json:"program"`
	Kind    string `json:"kind"`
	// Pull is the time until containerd reports the image as present, Run the time from then until the program has
	// ended.
	Pull float64 `json:"pull_s"`
	Run  float64 `json:"run_s"`
	// Workers and Piece are the settings of the background, if it was a pull of the sweep.
	Workers int   `json:"workers,omitempty"`
	Piece   int64 `json:"piece_bytes,omitempty"`
}

// lazySetting is a setting of wangell-snapshotter in the sweep; the zero value means its defaults.
type lazySetting struct {
	workers int
	piece   int64
}

// sweep are the settings that are compared. Other snapshotters have the first one.
var sweep = []lazySetting{
	{2, 256 << 10}, {2, 1 << 20}, {2, 4 << 20}, {4, 1 << 20}, {4, 4 << 20}, {4, 16 << 20}, {16, 1 << 20}, {16, 4 << 20},
	{16, 16 << 20},
}
