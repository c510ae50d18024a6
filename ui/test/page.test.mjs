// SPDX-License-Identifier: Apache-2.0
// The page with the services of internal/show/dashboard's TestPage: 1,000 of them, one with 200 pods.
import { after, before, test } from 'node:test';
import assert from 'node:assert/strict';
import { accessible, launch, open, shot } from './browser.mjs';

const url = process.env.DASHBOARD_URL;
let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

const row = (page, name) => page.locator('tbody tr', { has: page.getByRole('link', { name: `default/${name}`, exact: true }) });

test('services are listed, searched, filtered and sorted', async () => {
  const page = await open(browser, url);
  await page.getByText('Live', { exact: true }).waitFor();
  const table = page.getByRole('table', { name: 'Services' });
  assert.equal(await table.getAttribute('aria-rowcount'), '1003');
  assert.ok(await table.locator('tbody tr').count() < 60, 'all rows are drawn');
  await page.keyboard.press('/');
  await page.keyboard.type('crowd');
  await page.getByText('1 of 1002 services').waitFor();
  assert.match(await row(page, 'crowd').innerText(), /Awake/);
  await page.getByRole('searchbox').fill('');
  await page.getByRole('radio', { name: /^Failed/ }).click();
  assert.match(await row(page, 'broken').innerText(), /not found in registry/);
  await page.getByRole('radio', { name: /^All/ }).click();
  await page.getByRole('button', { name: 'Rate' }).click();
  await page.waitForFunction(() => document.querySelector('tbody tr a')?.textContent === 'default/crowd');
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test('rows are reached by keyboard', async () => {
  const page = await open(browser, url);
  await page.locator('tbody tr a').first().focus();
  await page.keyboard.press('ArrowDown');
  const name = await page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name }).waitFor();
  await page.getByRole('link', { name: 'All services' }).click();
  await page.getByRole('searchbox').waitFor();
  await page.context().close();
});

test('a service that balances requests shows them instead of connections', async () => {
  const page = await open(browser, `${url}#/services/default/api`);
  await page.getByRole('heading', { level: 2, name: 'Requests per second by pod' }).waitFor();
  const tiles = page.locator('dl.tiles');
  await page.waitForFunction(() => /Req\/s\s+[1-9]/.test(document.querySelector('dl.tiles')?.innerText ?? ''));
  assert.match(await tiles.innerText(), /Open requests\s+\d/);
  assert.match(await page.getByRole('table', { name: 'Pods' }).innerText(), /Req\/s/);
  await shot(page, 'requests');
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test('a service shows its pods, and two of its wakes side by side', async () => {
  const page = await open(browser, `${url}#/services/default/web`);
  await page.getByRole('heading', { level: 1, name: /web/ }).waitFor();
  const pods = page.getByRole('table', { name: 'Pods' });
  assert.equal(await pods.getAttribute('aria-rowcount'), '6');
  await page.waitForFunction(() => /Busiest \/ mean\s+1\.\d\d/.test(document.querySelector('dl.tiles')?.innerText ?? ''));
  await page.getByRole('button', { name: /Wake 1/ }).click();
  await page.getByRole('columnheader', { name: 'Difference' }).waitFor();
  assert.equal(await page.locator('table.waterfall').count(), 2);
  assert.match(await page.locator('table.compare').innerText(), /listening\s+.* ms\s+.* ms\s+[+−]/);
  await page.getByRole('radio', { name: 'Side by side' }).click();
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test('the gates of nodes show their tables, and one its counters', async () => {
  const page = await open(browser, `${url}#/node`);
  await page.getByRole('rowheader', { name: 'flows', exact: true }).waitFor();
  await page.getByRole('rowheader', { name: 'arp_replies' }).waitFor();
  const nodes = page.getByRole('table', { name: 'Nodes' });
  await nodes.getByRole('row', { name: 'node-0 2 services 98 %' }).waitFor();
  await nodes.getByRole('row', { name: 'node-2 Its daemon has not answered.' }).waitFor();
  await nodes.getByRole('button', { name: 'node-1' }).click();
  await page.getByRole('rowheader', { name: 'bad_encap' }).waitFor();
  await page.getByText('eth9').waitFor();
  assert.equal(await page.getByRole('rowheader', { name: 'arp_replies' }).count(), 0);
  assert.equal(await nodes.getByRole('button', { name: 'node-1' }).getAttribute('aria-pressed'), 'true');
  await nodes.getByRole('button', { name: 'node-2' }).click();
  await page.locator('p.empty', { hasText: 'Its daemon has not answered.' }).waitFor();
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test('the page says who is connected to what', async () => {
  const page = await open(browser, `${url}#/connections`);
  await page.getByRole('row', { name: '192.0.2.7 default/web 12' }).waitFor();
  await page.getByText('9 more connections · No answer: node-2').waitFor();
  await page.goto(`${url}#/services/default/crowd`);
  await page.getByRole('row', { name: '2001:db8::5 1' }).waitFor();
  await page.context().close();
});

for (const [name, options] of [
  ['light', { colorScheme: 'light' }],
  ['dark', { colorScheme: 'dark' }],
  ['phone', { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true }],
  ['japanese', { locale: 'ja-JP' }],
  ['japanese phone', { locale: 'ja-JP', viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true }],
]) {
  test(`axe finds nothing: ${name}`, async () => {
    const page = await open(browser, url, options);
    await page.locator('.connection.live').waitFor();
    for (const [view, there] of [['services', 'table'], ['services/default/web', '.waterfall'], ['services/default/crowd', '.chart'],
      ['services/default/broken', '.picker'], ['services/default/nothing', '.empty'], ['connections', '.ribbons'], ['wakes', '.waterfall'], ['events', 'h2'], ['node', '.bar']]) {
      await page.evaluate((v) => { location.hash = `#/${v}`; }, view);
      await page.locator(`main ${there}`).first().waitFor();
      if (process.env.SCREENSHOTS) await page.waitForTimeout(1500);
      await accessible(page, `${name} ${view}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(wide <= 0, `${name} ${view}: the page is ${wide} pixels wider than the window`);
      const hidden = await page.evaluate(() => { const n = document.querySelector('nav'); return n.scrollWidth - n.clientWidth; });
      assert.ok(hidden <= 0, `${name} ${view}: ${hidden} pixels of the navigation are hidden`);
      const over = await page.evaluate(() => [...document.querySelectorAll('.tile')].filter((x) => x.scrollWidth > x.clientWidth).map((x) => x.innerText));
      assert.deepEqual(over, [], `${name} ${view}: text leaves its tile`);
      await shot(page, `${name.replace(' ', '-')}-${view.replaceAll('/', '-')}`, { fullPage: view !== 'services' });
    }
    if (options.locale === 'ja-JP') assert.equal(await page.locator('html').getAttribute('lang'), 'ja');
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });
}

test('an update of 1,000 services and 200 pods takes little time', async () => {
  const page = await open(browser, `${url}#/services/default/crowd`);
  await page.locator('.connection.live').waitFor();
  const cdp = await page.context().newCDPSession(page);
  // The CPU time of the page's thread: how long it waits for a busy machine does not count.
  await cdp.send('Performance.enable', { timeDomain: 'threadTicks' });
  for (const view of ['services/default/crowd', 'services']) {
    await page.evaluate((v) => { location.hash = `#/${v}`; }, view);
    await page.waitForTimeout(2000);
    const read = async () => Object.fromEntries((await cdp.send('Performance.getMetrics')).metrics.map((m) => [m.name, m.value]));
    const [a, begin] = [await read(), Date.now()];
    await page.waitForTimeout(10_000);
    const [b, seconds] = [await read(), (Date.now() - begin) / 1000];
    const per = (name) => ((b[name] - a[name]) / seconds) * 1000;
    console.log(`${view}: per second script ${per('ScriptDuration').toFixed(1)} ms, layout ${per('LayoutDuration').toFixed(1)} ms, `
      + `style ${per('RecalcStyleDuration').toFixed(1)} ms, all tasks ${per('TaskDuration').toFixed(1)} ms, `
      + `heap ${(b.JSHeapUsedSize / 1e6).toFixed(1)} MB, nodes ${b.Nodes}`);
    // A tenth of the time: far from what a slow machine needs, and what drawing every row would cost.
    assert.ok(per('TaskDuration') < 400, `${view}: ${per('TaskDuration')} ms per second`);
  }
  await page.context().close();
});
