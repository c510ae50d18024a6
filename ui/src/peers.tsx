// SPDX-License-Identifier: Apache-2.0
// Who is connected to what, as the gates count it.
import { count } from './format';
import { t } from './i18n';
import { getConnections } from './live';
import { Panel } from './parts';
import { usePolled } from './poll';
import type { Connection } from './types';

const pause = 3_000;

/** Clients and services that the picture has; the table has all. */
const drawn = 12;

export function Peers({ known, service }: { known: boolean; service?: string }) {
  const [all, error] = usePolled(known, getConnections, pause);
  const list = (all?.most ?? []).filter((c) => !service || c.service === service);
  const notes = [
    !service && all && all.others > 0 && t('otherConnections', count(all.others)),
    all?.silent && t('silentNodes', all.silent.length > 3 ? count(all.silent.length) : all.silent.join(', ')),
  ].filter(Boolean);
  return (
    <Panel title={t('peers')} actions={notes.length > 0 && <span class="note">{notes.join(' · ')}</span>}>
      {!known ? <p class="empty">{t('unknownPeers')}</p>
        : error ? <p class="empty bad" role="alert">{error}</p>
        : list.length === 0 ? <p class="empty">{t('noPeers')}</p>
        : (
          <div class={service ? undefined : 'columns'}>
            {!service && <Picture list={list} />}
            <div class="scroll" tabIndex={0} role="region" aria-label={t('peers')}>
              <table>
                <thead><tr><th scope="col">{t('client')}</th>{!service && <th scope="col">{t('to')}</th>}
                  <th scope="col" class="num">{t('flows')}</th></tr></thead>
                <tbody>{list.map((c) => (
                  <tr key={`${c.client} ${c.service}`}><th scope="row"><code>{c.client}</code></th>
                    {!service && <td><a href={`#/services/${c.service}`}>{c.service}</a></td>}
                    <td class="num"><b>{count(c.open)}</b></td></tr>))}</tbody>
              </table>
            </div>
          </div>
        )}
    </Panel>
  );
}

/** tallest returns the names with the most connections, and how many each has. */
function tallest(list: Connection[], of: (c: Connection) => string): [string, number][] {
  const sums = new Map<string, number>();
  for (const c of list) sums.set(of(c), (sums.get(of(c)) ?? 0) + c.open);
  return [...sums].sort((a, b) => b[1] - a[1]).slice(0, drawn);
}

/** Picture draws a ribbon from each client to each service. The table beside it says the same. */
function Picture({ list }: { list: Connection[] }) {
  const clients = tallest(list, (c) => c.client);
  const services = tallest(list, (c) => c.service);
  const rows = Math.max(clients.length, services.length);
  const step = 34;
  const height = rows * step;
  const y = (i: number, n: number) => (i + 0.5) * (height / n);
  const most = Math.max(...list.map((c) => c.open));
  return (
    <svg class="ribbons" viewBox={`0 0 600 ${height}`} aria-hidden="true">
      {list.map((c) => {
        const a = clients.findIndex(([name]) => name === c.client);
        const b = services.findIndex(([name]) => name === c.service);
        if (a < 0 || b < 0) return null;
        const [y1, y2] = [y(a, clients.length), y(b, services.length)];
        return <path key={`${c.client} ${c.service}`} d={`M170 ${y1} C300 ${y1} 300 ${y2} 400 ${y2}`} stroke-width={1.5 + (c.open / most) * 16} />;
      })}
      {clients.map(([name], i) => <text key={name} x="160" y={y(i, clients.length) + 4} text-anchor="end">{name.length > 22 ? `${name.slice(0, 21)}…` : name}</text>)}
      {services.map(([name], i) => <text key={name} x="410" y={y(i, services.length) + 4}>{name.length > 26 ? `${name.slice(0, 25)}…` : name}</text>)}
    </svg>
  );
}
