// SPDX-License-Identifier: Apache-2.0
// The gates of the nodes: how full their tables are, and their counters.
import { useRef } from 'preact/hooks';
import { count } from './format';
import { t } from './i18n';
import { getGates } from './live';
import { Panel, Tile } from './parts';
import { usePolled } from './poll';
import type { Gate, Pressure } from './types';

const pause = 2_000;

export function Nodes({ known, pressure }: { known: boolean; pressure: Pressure[] }) {
  const before = useRef<{ at: number; gates: Gate[] } | undefined>(undefined);
  const rates = useRef(new Map<string, number>());
  const [gates, error] = usePolled(known, async () => {
    const next = await getGates();
    const at = performance.now();
    for (const g of next) {
      const old = before.current?.gates.find((o) => o.node === g.node);
      for (const [name, v] of Object.entries(g.counters)) {
        const was = old?.counters[name];
        if (was !== undefined) rates.current.set(`${g.node} ${name}`, Math.max(0, (v - was) / ((at - before.current!.at) / 1000)));
      }
    }
    before.current = { at, gates: next };
    return next;
  }, pause);

  if (!known) return <p class="empty">{t('noGates')}</p>;
  return (
    <>
      {pressure.length > 0 && (
        <Panel title={t('pressure')}><ul class="pressure">{pressure.map((p) => <li key={p.message}>{p.message}</li>)}</ul></Panel>)}
      {error && <p class="empty bad" role="alert">{error}</p>}
      {gates?.length === 0 && <p class="empty">{t('noDaemon')}</p>}
      {gates?.map((g) => <Node key={g.node} gate={g} rates={rates.current} />)}
    </>
  );
}

function Node({ gate, rates }: { gate: Gate; rates: Map<string, number> }) {
  const counters = Object.entries(gate.counters).sort(([a], [b]) => a.localeCompare(b));
  const tables = [...gate.tables].sort((a, b) => a.name.localeCompare(b.name));
  return (
    <>
      <h2 class="nodename">{gate.node}</h2>
      <dl class="tiles">
        <Tile name={t('parkedNow')}>{count(gate.parked)}</Tile>
        {Object.entries(gate.interfaces ?? {}).map(([name, xdp]) => <Tile key={name} name={name} more="XDP">{xdp}</Tile>)}
      </dl>
      <div class="columns">
        <Panel title={t('tables')}>
          <table>
            <thead><tr><th scope="col">{t('table')}</th><th scope="col" class="num">{t('used')}</th>
              <th scope="col" class="num">{t('size')}</th><th scope="col"><span class="hidden">{t('chart')}</span></th></tr></thead>
            <tbody>{tables.map((x) => {
              const part = x.size ? x.used / x.size : 0;
              return (
                <tr key={x.name}><th scope="row"><code>{x.name}</code></th><td class="num">{count(x.used)}</td>
                  <td class="num">{count(x.size)}</td>
                  <td><div class="bar"><i class={part > 0.9 ? 'bad' : part > 0.75 ? 'wait' : 'good'} style={{ width: `${part * 100}%` }} /></div></td></tr>
              );
            })}</tbody>
          </table>
        </Panel>
        <Panel title={t('counters')}>
          <div class="scroll" tabIndex={0} role="region" aria-label={t('counters')}>
            <table>
              <thead><tr><th scope="col">{t('counter')}</th><th scope="col" class="num">{t('value')}</th>
                <th scope="col" class="num">{t('perSecondShort')}</th></tr></thead>
              <tbody>{counters.map(([name, v]) => (
                <tr key={name} class={v ? undefined : 'zero'}><th scope="row"><code>{name}</code></th><td class="num">{v}</td>
                  <td class="num">{count(rates.get(`${gate.node} ${name}`) ?? 0)}</td></tr>))}</tbody>
            </table>
          </div>
        </Panel>
      </div>
    </>
  );
}
