// SPDX-License-Identifier: Apache-2.0
// The gates of the nodes: how full their tables are, and their counters.
import { useRef, useState } from 'preact/hooks';
import { count } from './format';
import { t } from './i18n';
import { getGates } from './live';
import { Panel, Tile } from './parts';
import { usePolled } from './poll';
import type { Gate, Pressure } from './types';

const pause = 2_000;

export function Nodes({ known, pressure }: { known: boolean; pressure: Pressure[] }) {
  const [chosen, choose] = useState('');
  const before = useRef<{ at: number; gate: Gate } | undefined>(undefined);
  const rates = useRef(new Map<string, number>());
  const [gates, error] = usePolled(known, async () => {
    const next = await getGates(chosen);
    const at = performance.now();
    const gate = next.find((g) => g.counters);
    const old = before.current?.gate.node === gate?.node ? before.current : undefined;
    rates.current = new Map();
    for (const [name, v] of Object.entries(gate?.counters ?? {})) {
      const was = old?.gate.counters?.[name];
      if (was !== undefined) rates.current.set(name, Math.max(0, (v - was) / ((at - old!.at) / 1000)));
    }
    before.current = gate && { at, gate };
    return next;
  }, pause, chosen);

  if (!known) return <p class="empty">{t('noGates')}</p>;
  const shown = gates?.find((g) => g.node === chosen) ?? gates?.[0];
  return (
    <>
      {pressure.length > 0 && (
        <Panel title={t('pressure')}><ul class="pressure">{pressure.map((p) => <li key={p.message}>{p.message}</li>)}</ul></Panel>)}
      {error && <p class="empty bad" role="alert">{error}</p>}
      {gates?.length === 0 && <p class="empty">{t('noDaemon')}</p>}
      {gates && shown && gates.length > 1 && <Overview gates={gates} shown={shown.node} choose={choose} />}
      {shown && <Node gate={shown} rates={rates.current} />}
    </>
  );
}

/** share is the part of a table that is in use. */
const share = (x: { used: number; size: number }): number => (x.size ? x.used / x.size : 0);

function Bar({ part }: { part: number }) {
  return <div class="bar"><i class={part > 0.9 ? 'bad' : part > 0.75 ? 'wait' : 'good'} style={{ width: `${part * 100}%` }} /></div>;
}

/** Overview has a row for each node, whose button shows the node below. */
function Overview({ gates, shown, choose }: { gates: Gate[]; shown: string; choose: (node: string) => void }) {
  return (
    <Panel title={t('nodes')}>
      <div class="scroll" tabIndex={0} role="region" aria-label={t('nodes')}>
        <table aria-label={t('nodes')}>
          <thead><tr><th scope="col">{t('nodeName')}</th><th scope="col" class="num">{t('parkedNow')}</th>
            <th scope="col">{t('fullest')}</th><th scope="col" class="num">{t('used')}</th>
            <th scope="col"><span class="hidden">{t('chart')}</span></th></tr></thead>
          <tbody>{gates.map((g) => {
            const fullest = [...g.tables].sort((a, b) => share(b) - share(a))[0];
            return (
              <tr key={g.node}>
                <th scope="row"><button type="button" aria-pressed={g.node === shown} onClick={() => choose(g.node)}>{g.node}</button></th>
                {g.silent || !fullest
                  ? <td colSpan={4}>{t('silentNode')}</td>
                  : (
                    <>
                      <td class="num">{count(g.parked)}</td><td><code>{fullest.name}</code></td>
                      <td class="num">{`${Math.round(share(fullest) * 100)} %`}</td><td><Bar part={share(fullest)} /></td>
                    </>)}
              </tr>
            );
          })}</tbody>
        </table>
      </div>
    </Panel>
  );
}

function Node({ gate, rates }: { gate: Gate; rates: Map<string, number> }) {
  const counters = Object.entries(gate.counters ?? {}).sort(([a], [b]) => a.localeCompare(b));
  const tables = [...gate.tables].sort((a, b) => a.name.localeCompare(b.name));
  if (gate.silent) return <><h2 class="nodename">{gate.node}</h2><p class="empty">{t('silentNode')}</p></>;
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
            <tbody>{tables.map((x) => (
              <tr key={x.name}><th scope="row"><code>{x.name}</code></th><td class="num">{count(x.used)}</td>
                <td class="num">{count(x.size)}</td><td><Bar part={share(x)} /></td></tr>))}</tbody>
          </table>
        </Panel>
        <Panel title={t('counters')}>
          <div class="scroll" tabIndex={0} role="region" aria-label={t('counters')}>
            <table>
              <thead><tr><th scope="col">{t('counter')}</th><th scope="col" class="num">{t('value')}</th>
                <th scope="col" class="num">{t('perSecondShort')}</th></tr></thead>
              <tbody>{counters.map(([name, v]) => (
                <tr key={name} class={v ? undefined : 'zero'}><th scope="row"><code>{name}</code></th><td class="num">{v}</td>
                  <td class="num">{count(rates.get(name) ?? 0)}</td></tr>))}</tbody>
            </table>
          </div>
        </Panel>
      </div>
    </>
  );
}
