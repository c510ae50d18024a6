// SPDX-License-Identifier: Apache-2.0
// Builds the dashboard into a folder: node build.mjs FOLDER. The same sources give the same bytes.
import { build } from 'esbuild';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, '../internal/show/dashboard/assets');

await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: 'src/main.tsx' },
  outdir: out,
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['es2022'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  logLevel: 'warning',
});
for (const file of ['index.html', 'icon.svg']) await copyFile(join(here, 'src', file), join(out, file));
// The licenses of what the script contains ask for their text to be kept.
const banner = '/*! SPDX-License-Identifier: Apache-2.0. Contains preact and uPlot (MIT): see ui/LICENSES.txt. */\n';
for (const file of ['app.js', 'app.css']) {
  const path = join(out, file);
  await writeFile(path, banner + (await readFile(path, 'utf8')));
}
