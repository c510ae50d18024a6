// SPDX-License-Identifier: Apache-2.0
// The page with a real cluster, as a user who may edit the namespace "watched": see test/kube/dashboard_test.go.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { execSync } from 'node:child_process';
import { accessible, launch, open, shot } from './browser.mjs';
import { ask, hold, load } from './load.mjs';

const url = process.env.DASHBOARD_URL;
const address = process.env.SERVICE_ADDRESS;

test('a user watches a service of a cluster, also while the leader changes', async () => {
  const browser = await launch();
  let busy;
  let held = [];
  try {
    const page = await open(browser, url);
    const row = page.locator('tbody tr', { has: page.getByRole('link', { name: 'watched/hello', exact: true }) });
    await row.getByText('Asleep', { exact: true }).waitFor();
    assert.doesNotMatch(await page.locator('main').innerText(), /hidden/, 'a service of another namespace is shown');
    assert.equal(await ask(address), 200);
    await row.getByText('Awake', { exact: true }).waitFor();

    // It is scaled to two pods by its open connections: 10 for each. Once those have ended, each gets new ones.
    held = await hold(address, 20);
    busy = load(address, 4);
    await row.getByRole('link').click();
    await page.getByRole('heading', { level: 1, name: 'hello' }).waitFor();
    await page.waitForFunction(() => document.querySelectorAll('.bar i').length === 2);
    for (const socket of held.splice(0)) socket.destroy();
    await page.waitForFunction(() => [...document.querySelectorAll('.bar i')].every((b) => parseFloat(b.style.width) > 0));
    await page.locator('.uplot canvas').first().waitFor();
    if (process.env.SCREENSHOTS) await page.waitForTimeout(20_000);
    await shot(page, 'cluster-busy', { clip: { x: 0, y: 0, width: 1360, height: 860 } });
    await busy.stop();

    await page.getByRole('button', { name: 'Put to sleep' }).click();
    await page.locator('h1 .badge.cold').waitFor();
    const fall = page.locator('table.waterfall');
    for (const phase of ['told', 'handled', 'created', 'listening', 'released']) {
      await fall.getByRole('rowheader', { name: phase, exact: true }).waitFor();
    }
    await accessible(page, 'a service of a cluster');
    await shot(page, 'cluster-wakes', { fullPage: true });

    // What concerns nodes is for those who see all namespaces.
    await page.getByRole('link', { name: 'Node', exact: true }).click();
    await page.getByText('users who may see the services of all namespaces').waitFor();
    assert.deepEqual(page.problems, []);

    // They see the gates of all nodes, and who connects.
    const all = await open(browser, process.env.ADMIN_URL);
    await all.getByRole('link', { name: 'Node', exact: true }).click();
    const names = process.env.NODES.split(' ');
    const last = names[names.length - 1];
    if (names.length > 1) {
      const nodes = all.getByRole('table', { name: 'Nodes' });
      for (const node of names) {
        await nodes.getByRole('row', { name: new RegExp(`^${node} \\d+ \\w+ \\d+ %`) }).waitFor();
      }
      await nodes.getByRole('button', { name: last, exact: true }).click();
    }
    await all.getByRole('heading', { level: 2, name: last, exact: true }).waitFor();
    await all.getByRole('rowheader', { name: 'arp_replies', exact: true }).waitFor();
    await accessible(all, 'the nodes of a cluster');
    await shot(all, 'cluster-nodes', { fullPage: true });
    held = await hold(address, 3);
    await all.getByRole('link', { name: 'Connections', exact: true }).click();
    await all.getByRole('row', { name: new RegExp(`^${held[0].localAddress} watched/hello 3$`) }).waitFor();
    await shot(all, 'cluster-connections');
    for (const socket of held.splice(0)) socket.destroy();
    assert.deepEqual(all.problems, []);
    await all.context().close();
    await page.goBack();
    await page.getByRole('button', { name: 'Put to sleep' }).click();
    await page.locator('h1 .badge.cold').waitFor();

    // The page goes over to the next leader by itself.
    execSync(process.env.KILL_LEADER);
    await page.locator('.connection.lost').waitFor();
    await page.locator('.connection.live').waitFor();
    await page.locator('h1 .badge.cold').waitFor();
    assert.equal(await ask(address), 200);
    await page.locator('h1 .badge.warm').waitFor();
    await page.getByRole('button', { name: 'Put to sleep' }).click();
    await page.locator('h1 .badge.cold').waitFor();
  } finally {
    await busy?.stop().catch(() => undefined);
    for (const socket of held) socket.destroy();
    await browser.close();
  }
});
