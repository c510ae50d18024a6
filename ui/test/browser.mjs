// SPDX-License-Identifier: Apache-2.0
// A real Chromium for tests. Debian's, as playwright-core brings none.
import { createRequire } from 'node:module';
import { readFile } from 'node:fs/promises';
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const require = createRequire(import.meta.url);

/** launch starts Chromium. It asks nothing of the network but the pages of the test. */
export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
  });
}

/** open returns a page whose errors, in the console or of requests, are in page.problems. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.on('pageerror', (e) => page.problems.push(String(e)));
  page.on('console', (m) => { if (m.type() === 'error') page.problems.push(m.text()); });
  page.setDefaultTimeout(Number(process.env.PATIENCE_MS ?? 60_000));
  await page.goto(url);
  return page;
}

/** accessible fails with what axe-core finds wrong with the page. */
export async function accessible(page, where) {
  const source = await readFile(require.resolve('axe-core/axe.min.js'), 'utf8');
  // Not as a script of the page: its policy forbids that.
  await page.evaluate(source);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  const list = found.violations.map((v) =>
    `${v.id}: ${v.help}\n${v.nodes.slice(0, 5).map((n) => `    ${n.html.slice(0, 160)}\n    ${n.failureSummary}`).join('\n')}`);
  assert.equal(list.length, 0, `${where}:\n${list.join('\n')}`);
}

/** shot writes a screenshot if the environment names a folder for them. */
export async function shot(page, name, options = {}) {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}.png`, ...options });
}
