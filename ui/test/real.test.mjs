// SPDX-License-Identifier: Apache-2.0
// The page with a real wangell up, which runs the service default/hello: see test/e2e/dashboard_test.go.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { accessible, launch, open, shot } from './browser.mjs';
import { ask, hold, load } from './load.mjs';

const url = process.env.DASHBOARD_URL;
const address = process.env.SERVICE_ADDRESS;

test('a service wakes, is busy, and goes to sleep', async () => {
  const browser = await launch();
  let busy;
  let held = [];
  try {
    const page = await open(browser, url);
    const row = page.locator('tbody tr', { has: page.getByRole('link', { name: 'default/hello' }) });
    await row.getByText('Asleep', { exact: true }).waitFor();
    assert.equal(await ask(address), 200);
    await row.getByText('Awake', { exact: true }).waitFor();
    // It is scaled to three pods by its open connections: 10 for each.
    held = await hold(address, 30);
    busy = load(address, 6);
    await page.waitForFunction(() => Number(document.querySelector('tbody tr.link td b').textContent) > 1);
    if (process.env.SCREENSHOTS) await page.waitForTimeout(20_000);
    await shot(page, 'real-services', { clip: { x: 0, y: 0, width: 1360, height: 480 } });

    await row.getByRole('link').click();
    await page.getByRole('heading', { level: 1, name: 'hello' }).waitFor();
    await page.getByRole('row', { name: new RegExp(`^${held[0].localAddress} \\d+$`) }).waitFor();
    for (const socket of held.splice(0)) socket.destroy();
    // The bars of three pods move from nothing: new connections go to each of them by now.
    await page.waitForFunction(() => {
      const bars = [...document.querySelectorAll('.bar i')];
      return bars.length === 3 && bars.every((b) => parseFloat(b.style.width) > 0);
    });
    await page.locator('dl.tiles').getByText(/^1\.\d\d$/).waitFor(); // busiest / mean
    await page.locator('.uplot canvas').first().waitFor();
    if (process.env.SCREENSHOTS) await page.waitForTimeout(30_000);
    await shot(page, 'real-busy', { clip: { x: 0, y: 0, width: 1360, height: 860 } });
    await busy.stop();
    await page.waitForFunction(() => [...document.querySelectorAll('.bar i')].every((b) => parseFloat(b.style.width) === 0));

    await page.getByRole('button', { name: 'Put to sleep' }).click();
    await page.locator('h1 .badge.cold').waitFor();
    await page.getByText('It has no pod: the next connection wakes it.').waitFor();
    const fall = page.locator('table.waterfall');
    for (const phase of ['told', 'handled', 'sandbox', 'created', 'started', 'listening', 'released']) {
      await fall.getByRole('rowheader', { name: phase, exact: true }).waitFor();
    }
    await page.locator('.events .badge.cold').first().waitFor();

    // A second wake is beside the first.
    assert.equal(await ask(address), 200);
    await page.getByRole('button', { name: /Wake 2/ }).waitFor();
    await page.getByRole('button', { name: /Wake 1/ }).click();
    await page.getByRole('columnheader', { name: 'Difference' }).waitFor();
    await shot(page, 'real-wakes', { fullPage: true });
    await accessible(page, 'a real service');

    await page.getByRole('link', { name: 'Node' }).click();
    await page.getByRole('rowheader', { name: 'flows', exact: true }).waitFor();
    await shot(page, 'real-node', { fullPage: true });
    await page.goBack();
    await page.getByRole('button', { name: 'Put to sleep' }).click();
    await page.locator('h1 .badge.cold').waitFor();
    assert.deepEqual(page.problems, []);
  } finally {
    await busy?.stop().catch(() => undefined);
    for (const socket of held) socket.destroy();
    await browser.close();
  }
});
