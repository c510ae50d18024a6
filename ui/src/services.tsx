// SPDX-License-Identifier: Apache-2.0
// All services.
import { useRef, useState, useEffect } from 'preact/hooks';
import { count, micros } from './format';
import { ago, duration, t } from './i18n';
import { List, sorted, type Column, type Sort } from './list';
import { Badge, Choices, Spark, Tile } from './parts';
import { fullName, shortSpan, slept, type Service, type Store } from './store';
import type { State } from './types';

const order: State[] = ['Failed', 'Waking', 'Stopping', 'Warm', 'Frozen', 'Cold'];
type Filter = 'all' | 'awake' | 'asleep' | 'failed';

const matches = (s: Service, filter: Filter): boolean => {
  switch (filter) {
    case 'all': return true;
    case 'failed': return s.row.state === 'Failed';
    case 'asleep': return s.row.state === 'Cold';
    case 'awake': return s.row.state !== 'Cold' && s.row.state !== 'Failed';
  }
};

const coreHours = (coreSeconds: number): string => (coreSeconds ? `${count(coreSeconds / 3600)} ${t('coreHours')}` : '–');
const gibHours = (byteSeconds: number): string => (byteSeconds ? `${count(byteSeconds / 3600 / 2 ** 30)} ${t('gibHours')}` : '–');

export const serviceLink = (name: string): string => `#/services/${name}`;

function columns(now: number): Column<Service>[] {
  const byName = (a: Service, b: Service) => fullName(a.row).localeCompare(fullName(b.row));
  return [
    { key: 'name', title: 'service', compare: byName, cell: (s) => (
      <span class="name">
        <a href={serviceLink(fullName(s.row))}><small>{s.row.ns}/</small>{s.row.name}</a>
        {s.row.msg && <small class={s.row.state === 'Failed' ? 'bad' : 'note'} title={s.row.msg}>{s.row.msg}</small>}
      </span>
    ) },
    { key: 'state', title: 'state', compare: (a, b) => order.indexOf(a.row.state) - order.indexOf(b.row.state) || byName(a, b),
      cell: (s) => <Badge state={s.row.state} /> },
    { key: 'pods', title: 'pods', numeric: true, descending: true, wide: 1,
      compare: (a, b) => a.row.serving - b.row.serving || a.row.desired - b.row.desired || byName(b, a),
      cell: (s) => (s.row.serving === s.row.desired ? s.row.serving : `${s.row.serving}/${s.row.desired}`) },
    { key: 'addr', title: 'address', wide: 2, cell: (s) => <code>{s.row.addr}</code> },
    { key: 'flows', title: 'flows', numeric: true, descending: true, wide: 1,
      compare: (a, b) => a.load[1] - b.load[1] || byName(b, a), cell: (s) => count(s.load[1]) },
    { key: 'rate', title: 'perSecond', numeric: true, descending: true,
      compare: (a, b) => a.load[2] - b.load[2] || byName(b, a), cell: (s) => (
        <span class="two"><b>{count(s.load[2])}</b><small>{t(s.row.req ? 'requestRate' : 'rate')}</small></span>) },
    { key: 'spark', title: 'lastMinute', wide: 1, cell: (s) => <Spark values={s.rates} length={shortSpan} /> },
    { key: 'latest', title: 'lastPacket', numeric: true, descending: true, wide: 3,
      compare: (a, b) => a.load[5] - b.load[5] || byName(b, a), cell: (s) => ago(s.load[5], now, s.row.history) },
    { key: 'wake', title: 'lastWake', numeric: true, descending: true, wide: 1,
      compare: (a, b) => (a.row.wake ?? -1) - (b.row.wake ?? -1) || byName(b, a),
      cell: (s) => (s.row.wake !== undefined ? micros(s.row.wake) : s.row.result === 'failed' ? t('resultFailed') : '–') },
    { key: 'asleep', title: 'timeAsleep', numeric: true, descending: true, wide: 2,
      compare: (a, b) => slept(a.row, now).seconds - slept(b.row, now).seconds || byName(b, a),
      cell: (s) => duration(slept(s.row, now).seconds) },
    { key: 'saved', title: 'saved', numeric: true, descending: true, wide: 2,
      compare: (a, b) => slept(a.row, now).cpu - slept(b.row, now).cpu
        || slept(a.row, now).memory - slept(b.row, now).memory || byName(b, a),
      cell: (s) => {
        const { cpu, memory } = slept(s.row, now);
        return cpu || memory ? <span class="two"><span>{coreHours(cpu)}</span><small>{gibHours(memory)}</small></span> : '–';
      } },
  ];
}

export function Services({ store }: { store: Store }) {
  const [text, setText] = useState('');
  const [filter, setFilter] = useState<Filter>('all');
  const [sort, setSort] = useState<Sort>({ key: 'state', down: false });
  const search = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      const typing = (e.target as HTMLElement).closest('input, select, textarea');
      if (e.key !== '/' || typing || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      search.current?.focus();
    };
    document.addEventListener('keydown', key);
    return () => document.removeEventListener('keydown', key);
  }, []);

  const all = [...store.services.values()];
  const found = all.filter((s) => matches(s, filter) && fullName(s.row).includes(text.trim()));
  const cols = columns(store.now);
  const number = (f: Filter) => all.filter((s) => matches(s, f)).length;
  return (
    <>
      <Summary services={all} now={store.now} />
      <div class="tools">
        <input ref={search} type="search" placeholder={`${t('search')}  /`} aria-label={t('search')} value={text}
          onInput={(e) => setText(e.currentTarget.value)} />
        <Choices label={t('filter')} value={filter} choose={setFilter}
          choices={(['all', 'awake', 'asleep', 'failed'] as Filter[]).map(
            (f) => ({ value: f, text: <>{t(f)} <small>{number(f)}</small></> }))} />
        <span class="note" role="status">{found.length !== all.length && t('rowsShown', found.length, all.length)}</span>
      </div>
      {found.length > 0 ? (
        <List label={t('services')} items={sorted(found, cols, sort)} columns={cols} id={(s) => s.row.id} sort={sort}
          onSort={setSort} rowHeight={52} open={(s) => { location.hash = serviceLink(fullName(s.row)); }} />
      ) : <p class="empty">{all.length ? t('nothingFound') : t('none')}</p>}
    </>
  );
}

function Summary({ services, now }: { services: Service[]; now: number }) {
  let rate = 0;
  let open = 0;
  let pods = 0;
  let awake = 0;
  const saved = { cpu: 0, memory: 0 };
  for (const s of services) {
    if (!s.row.req) {
      rate += s.load[2];
      open += s.load[1];
    }
    pods += s.row.serving;
    if (s.row.state !== 'Cold') awake++;
    const { cpu, memory } = slept(s.row, now);
    saved.cpu += cpu;
    saved.memory += memory;
  }
  return (
    <dl class="tiles">
      <Tile name={t('awake')} more={t('ofDesired', services.length)}>{awake}</Tile>
      <Tile name={t('podsServing')}>{pods}</Tile>
      <Tile name={t('connectionsPerSecond')}>{count(rate)}</Tile>
      <Tile name={t('openConnections')}>{count(open)}</Tile>
      <Tile name={t('savedCPU')} more={t('coreHours')}>{count(saved.cpu / 3600)}</Tile>
      <Tile name={t('savedMemory')} more={t('gibHours')}>{count(saved.memory / 3600 / 2 ** 30)}</Tile>
    </dl>
  );
}
