// SPDX-License-Identifier: Apache-2.0

package pull

import "fmt"

// step is a step of the recipe of the image; it makes one layer.
type step struct {
	// Wheels are Python packages, as NAME==VERSION, without their dependencies.
	Wheels []string
	// Packages are Debian packages; dependencies that no earlier step has are added.
	Packages []string
	// Files is the number of small source files of the application that the step copies.
	Files int
}

// Sizes of the image.
const (
	small = "small" // about 150 MB unpacked, 15 layers
	large = "large" // about 1.6 GB unpacked, 45 layers
)

// recipe returns the steps of the image of a size: a system, an interpreter, libraries, one step that installs most of
// a machine-learning stack, single libraries, and the layers of an application, as in images that grew for years.
func recipe(size string) []step {
	if size == small {
		return smallRecipe()
	}
	steps := []step{
		{Packages: []string{"bash", "coreutils", "sed", "grep"}}, {Packages: []string{"python3"}},
		{Packages: []string{"ca-certificates"}}, {Packages: []string{"curl"}}, {Packages: []string{"git"}},
		{Packages: []string{"libgomp1"}}, {Packages: []string{"libopenblas0-pthread"}}, {Packages: []string{"cmake"}},
		{Packages: []string{"libboost-dev"}},
	}
	steps = append(steps, step{Wheels: []string{
		"jaxlib==0.5.0", "opencv-python-headless==4.11.0.86", "numpy==2.2.2", "scikit-learn==1.6.1",
	}})
	for _, w := range []string{
		"pyarrow==19.0.0", "polars==1.20.0", "scipy==1.15.1", "onnxruntime==1.20.1",
		"sympy==1.13.3", "transformers==4.48.1", "matplotlib==3.10.0", "lightgbm==4.5.0", "networkx==3.4.2",
		"joblib==1.4.2", "packaging==24.2", "six==1.17.0", "idna==3.10", "certifi==2024.12.14", "urllib3==2.3.0",
		"requests==2.32.3", "tqdm==4.67.1", "mpmath==1.3.0", "typing-extensions==4.12.2", "python-dateutil==2.9.0.post0",
	} {
		steps = append(steps, step{Wheels: []string{w}})
	}
	return append(steps, application(15)...)
}

func smallRecipe() []step {
	steps := []step{
		{Packages: []string{"bash", "coreutils"}}, {Packages: []string{"python3"}}, {Wheels: []string{"numpy==2.2.2"}},
	}
	for _, w := range []string{"sympy==1.13.3", "networkx==3.4.2", "mpmath==1.3.0", "joblib==1.4.2", "idna==3.10",
		"six==1.17.0"} {
		steps = append(steps, step{Wheels: []string{w}})
	}
	return append(steps, application(6)...)
}

// application returns the layers of an application, each a few source files.
func application(layers int) []step {
	var steps []step
	for i := range layers {
		steps = append(steps, step{Files: 5 + i%7})
	}
	return steps
}

// Port is where the application listens, and answer is what it answers to GET /.
const (
	port   = 8080
	answer = "the model is up\n"
)

// entrypoint is the application: an HTTP server of the interpreter in the image.
func entrypoint() []string {
	return []string{"/usr/bin/python3", "-m", "http.server", "--directory", "/srv", fmt.Sprint(port)}
}

// variant is one way to store the layers, by the words of `wangell image convert`.
type variant struct{ name, layers, compression string }

// original is the name of the image as it was built.
const original = "gzip"

// best is the name of the variant that should be fastest.
const best = "zstd_split"

// variants returns the ways to store the layers of an image whose pieces have a number of bytes, unpacked.
func variants(piece int64) []variant {
	split := fmt.Sprintf("split=%d", piece)
	return []variant{
		{original, "keep", "gzip"}, {"uncompressed", "keep", "none"}, {"squash", "squash", "gzip"},
		{"squash_uncompressed", "squash", "none"}, {"zstd", "keep", "zstd"}, {"split", split, "gzip"},
		{best, split, "zstd"},
	}
}
