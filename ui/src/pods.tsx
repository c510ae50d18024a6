// SPDX-License-Identifier: Apache-2.0
// The load of each pod of a service: over time, and now.
import { useState } from 'preact/hooks';
import { Chart, podColors, type Line } from './chart';
import { bytes, count } from './format';
import { duration, t, type Key } from './i18n';
import { List, sorted, type Column, type Sort } from './list';
import { Choices, Panel } from './parts';
import { evenness, type PodEntry, type Watched } from './store';

/** Pods that have a line of their own in the chart; the others share one. */
const drawn = 20;

type Mode = 'stacked' | 'lines';

const shortName = (name: string): string => (name.length > 24 ? `…${name.slice(-22)}` : name);

/** byPod returns the pods in the order of their numbers, with their colours. */
function byPod(w: Watched): { pod: PodEntry; color: string }[] {
  return [...w.pods.values()].sort((a, b) => a.pod.id - b.pod.id)
    .map((pod, i) => ({ pod, color: i < drawn ? podColors[i % podColors.length] : 'var(--muted)' }));
}

/** series returns a column for each line of the chart, aligned with the times. Stacked ones contain those below. */
export function series(w: Watched, mode: Mode, seconds: number): { times: number[]; lines: Line[] } {
  const from = Math.max(0, w.times.length - seconds - 2);
  const times = w.times.slice(from);
  const n = times.length;
  const column = (rates: number[]): (number | null)[] => {
    const tail = rates.slice(-n);
    return tail.length < n ? [...new Array<null>(n - tail.length).fill(null), ...tail] : tail;
  };
  const pods = byPod(w);
  const columns = pods.slice(0, drawn).map((p) => ({ label: p.pod.pod.name, color: p.color, values: column(p.pod.rates) }));
  // The rest is of further pods, and of those that are gone. Rates are rounded: a little of it is none.
  const rest = w.rate.slice(from).map((all, i) => {
    const left = all - columns.reduce((sum, c) => sum + (c.values[i] ?? 0), 0);
    return left > all * 0.02 ? left : 0;
  });
  if (rest.some((v) => v > 0)) columns.push({ label: t('others'), color: '--muted', values: rest });
  if (mode === 'lines') return { times, lines: columns.map((c) => ({ ...c, width: 1.5 })) };
  const sum = new Array<number>(n).fill(0);
  const lines = columns.map((c) => {
    c.values.forEach((v, i) => { sum[i] += v ?? 0; });
    return { label: c.label, color: c.color, values: [...sum], fill: 1, width: 1 };
  });
  return { times, lines: lines.reverse() }; // the topmost is drawn first
}

interface PanelProps { watched: Watched; requests?: boolean; now: number; seconds: number; theme: string }

export function PodsPanel({ watched, requests, now, seconds, theme }: PanelProps) {
  const title = t(requests ? 'requestsPerPod' : 'perPod');
  const [mode, setMode] = useState<Mode>('stacked');
  const even = evenness(watched.pods.values());
  const { times, lines } = series(watched, mode, seconds);
  return (
    <Panel title={title} actions={
      <Choices label={t('chart')} value={mode} choose={setMode}
        choices={[{ value: 'stacked', text: t('stacked') }, { value: 'lines', text: t('lines') }]} />}>
      <Chart label={`${title}: ${t('mean')} ${count(even.mean)}, ${t('busiest')} ${count(even.busiest)}`} times={times}
        lines={lines} height={220} now={now / 1000} seconds={seconds} theme={`${theme} ${mode}`} />
    </Panel>
  );
}

export function CountPanel({ watched, now, seconds, theme }: { watched: Watched; now: number; seconds: number; theme: string }) {
  const [good, failed, coming, going] = watched.count;
  const from = Math.max(0, watched.times.length - seconds - 2);
  // What there never was would be a line at the bottom.
  const some = (values: number[]): (number | null)[] => (values.some((v) => v > 0) ? values : values.map(() => null));
  const lines: Line[] = [
    { label: 'going', color: '--muted', values: some(watched.going.slice(from)), step: true, dash: [2, 3], width: 1.5 },
    { label: 'coming', color: '--wait', values: some(watched.coming.slice(from)), step: true, dash: [5, 3], width: 1.5 },
    { label: 'good', color: '--good', values: some(watched.good.slice(from)), step: true, fill: 0.25, width: 2 },
    { label: 'failed', color: '--bad', values: some(watched.failed.slice(from)), step: true, fill: 0.45, width: 2 },
  ];
  const legend: [Key, string, number][] = [['good', 'good', good], ['bad', 'bad', failed], ['coming', 'wait', coming],
    ['going', 'muted', going]];
  return (
    <Panel title={t('podsOverTime')} actions={
      <ul class="legend">{legend.map(([key, color, n]) => (
        <li key={key}><i class={color} aria-hidden="true" />{t(key)} <b>{n}</b></li>))}</ul>}>
      <Chart label={`${t('podsOverTime')}: ${legend.map(([key, , n]) => `${t(key)} ${n}`).join(', ')}`}
        times={watched.times.slice(from)} lines={lines} height={220} now={now / 1000} seconds={seconds} whole theme={theme} />
    </Panel>
  );
}

/** PodTable is the load of each pod now, with bars and a mark at the mean. */
export function PodTable({ watched, requests, now }: { watched: Watched; requests?: boolean; now: number }) {
  const [sort, setSort] = useState<Sort>({ key: 'name', down: false });
  const pods = byPod(watched);
  const even = evenness(watched.pods.values());
  const most = Math.max(even.busiest, 1e-9);
  type Entry = (typeof pods)[number];
  const by = (f: (p: PodEntry) => number) => (a: Entry, b: Entry) => f(a.pod) - f(b.pod) || b.pod.pod.id - a.pod.pod.id;
  const columns: Column<Entry>[] = [
    { key: 'name', title: 'pod', compare: (a, b) => a.pod.pod.id - b.pod.pod.id, cell: ({ pod, color }) => (
      <span class="podname"><i class="swatch" style={{ background: color }} aria-hidden="true" />
        <code title={pod.pod.name}>{shortName(pod.pod.name)}</code></span>) },
    { key: 'rate', title: requests ? 'requestRate' : 'rate', numeric: true, descending: true, compare: by((p) => p.load[2]), cell: ({ pod }) => <b>{count(pod.load[2])}</b> },
    { key: 'bar', title: 'byMean', cell: ({ pod, color }) => (
      <div class="bar" aria-hidden="true">
        <i style={{ width: `${(pod.load[2] / most) * 100}%`, background: color }} />
        {even.mean > 0 && <u style={{ left: `${(even.mean / most) * 100}%` }} />}
      </div>) },
    { key: 'open', title: 'flows', numeric: true, descending: true, compare: by((p) => p.load[1]), cell: ({ pod }) => count(pod.load[1]) },
    { key: 'in', title: 'in', numeric: true, descending: true, wide: 1, compare: by((p) => p.load[3]), cell: ({ pod }) => bytes(pod.load[3]) },
    { key: 'out', title: 'out', numeric: true, descending: true, wide: 1, compare: by((p) => p.load[4]), cell: ({ pod }) => bytes(pod.load[4]) },
    { key: 'state', title: 'state', wide: 1, cell: ({ pod }) => <span class={`podstate ${pod.pod.state}`}>{t(pod.pod.state as Key)}</span> },
    { key: 'node', title: 'nodeName', wide: 2, cell: ({ pod }) => pod.pod.node ?? '–' },
    { key: 'age', title: 'age', numeric: true, wide: 2, compare: by((p) => now / 1000 - (p.pod.started ?? 0)),
      cell: ({ pod }) => (pod.pod.started ? duration(now / 1000 - pod.pod.started) : '–') },
  ];
  return (
    <Panel title={t('nowPerPod')} actions={even.ratio !== undefined && (
      <span class="note">{t('busiestByMean')} <b>{even.ratio.toFixed(2)}</b> · {t('mean')} <b>{count(even.mean)}</b></span>)}>
      {pods.length > 0 ? (
        <List label={t('pods')} items={sorted(pods, columns, sort)} columns={columns} id={(p) => p.pod.pod.id} sort={sort}
          onSort={setSort} rowHeight={36} maxHeight={400} />
      ) : <p class="empty">{t('noPods')}</p>}
    </Panel>
  );
}
