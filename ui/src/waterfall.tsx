// SPDX-License-Identifier: Apache-2.0
// Wakes as waterfalls, alone or two beside each other.
import { useState } from 'preact/hooks';
import { micros } from './format';
import { clock, t, type Key } from './i18n';
import { Panel } from './parts';
import type { Wake } from './types';

export interface Bar {
  phase: string;
  from: number; // microseconds since the first phase
  to: number;
}

/** bars returns the phases that took time, each from the end of the one before. */
export function bars(wake: Wake, phases: string[]): Bar[] {
  return wake.ph.slice(1).map(([index, at], i) => ({ phase: phases[index] ?? '?', from: wake.ph[i][1], to: at }));
}

/** listening is when the pod listened, in microseconds; undefined if it never did. */
export function listening(wake: Wake, phases: string[]): number | undefined {
  return wake.ph.find(([index]) => phases[index] === 'listening')?.[1];
}

const resultKey = (r: string): Key => (r === 'failed' ? 'resultFailed' : (r as Key));
const id = (w: Wake): string => `${w.s} ${w.n}`;

function Waterfall({ wake, phases, scale }: { wake: Wake; phases: string[]; scale: number }) {
  const all = bars(wake, phases);
  return (
    <table class="waterfall">
      <caption>
        {t('wakeNumber', wake.n)} · {wake.s} · {clock(wake.start)} · <span class={`result ${wake.result}`}>
          {t(resultKey(wake.result))}</span>
        {wake.parked > 0 && <> · {t('parked')} {wake.parked}</>}
        {wake.reason && <p class="bad">{wake.reason}</p>}
      </caption>
      <thead><tr><th scope="col">{t('phase')}</th><th scope="col" class="num">{t('took')}</th>
        <th scope="col" class="num wide1">{t('at')}</th><th scope="col" class="lane"><span class="hidden">{t('chart')}</span></th></tr></thead>
      <tbody>
        {all.map((b) => (
          <tr key={b.phase}>
            <th scope="row">{b.phase}</th>
            <td class="num">{micros(b.to - b.from)}</td>
            <td class="num wide1">{micros(b.to)}</td>
            <td class="lane"><div class="track" aria-hidden="true">
              <i class={`ph-${b.phase}`} style={{ left: `${(b.from / scale) * 100}%`, width: `${Math.max(((b.to - b.from) / scale) * 100, 0.4)}%` }} />
            </div></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Comparison({ a, b, phases }: { a: Wake; b: Wake; phases: string[] }) {
  const took = (w: Wake) => new Map(bars(w, phases).map((x) => [x.phase, x.to - x.from]));
  const [left, right] = [took(a), took(b)];
  const rows = phases.filter((p) => left.has(p) || right.has(p));
  const cell = (v?: number) => (v === undefined ? '–' : micros(v));
  return (
    <table class="compare">
      <thead><tr><th scope="col">{t('phase')}</th><th scope="col" class="num">{t('wakeNumber', a.n)}</th>
        <th scope="col" class="num">{t('wakeNumber', b.n)}</th><th scope="col" class="num">{t('difference')}</th></tr></thead>
      <tbody>{rows.map((p) => {
        const [x, y] = [left.get(p), right.get(p)];
        const d = x !== undefined && y !== undefined ? y - x : undefined;
        return (
          <tr key={p}><th scope="row">{p}</th><td class="num">{cell(x)}</td><td class="num">{cell(y)}</td>
            <td class={`num ${d === undefined || Math.abs(d) < 500 ? '' : d > 0 ? 'bad' : 'ok'}`}>
              {d === undefined ? '–' : `${d < 0 ? '−' : '+'}${micros(Math.abs(d))}`}</td></tr>
        );
      })}</tbody>
    </table>
  );
}

/** Wakes is a list of wakes, newest first, with the waterfalls of one or two. */
export function Wakes({ wakes, phases, service, history }:
  { wakes: Wake[]; phases: string[]; service?: boolean; history?: number }) {
  const [chosen, setChosen] = useState<string[]>([]);
  const newest = [...wakes].reverse();
  const there = chosen.map((c) => newest.find((w) => id(w) === c)).filter((w) => w !== undefined);
  const shown = there.length ? there : newest.slice(0, 1);
  const toggle = (w: Wake) => {
    const now = shown.map(id);
    if (now.includes(id(w))) return setChosen(now.length > 1 ? now.filter((c) => c !== id(w)) : now);
    setChosen([...now, id(w)].slice(-2));
  };
  const scale = Math.max(...shown.flatMap((w) => w.ph.map(([, at]) => at)), 1);
  return (
    <Panel title={t(service ? 'wakesOf' : 'wakes')} actions={newest.length > 1 && <span class="note">{t('compare')}</span>}>
      {newest.length === 0 ? <p class="empty">{history ? t('noWakesSince', clock(history * 1000)) : t('noWakes')}</p> : (
        <div class="wakes">
          <ul class="picker" aria-label={t('compare')}>
            {newest.map((w) => {
              const at = listening(w, phases);
              return (
                <li key={id(w)}>
                  <button type="button" aria-pressed={shown.some((s) => id(s) === id(w))} onClick={() => toggle(w)}>
                    <span>{service ? t('wakeNumber', w.n) : w.s}<small>{clock(w.start)}</small></span>
                    <b class={`result ${w.result}`}>{at !== undefined ? micros(at) : t(resultKey(w.result))}</b>
                  </button>
                </li>
              );
            })}
          </ul>
          <div class="falls">
            {shown.map((w) => <Waterfall key={id(w)} wake={w} phases={phases} scale={scale} />)}
            {shown.length === 2 && <Comparison a={shown[0]} b={shown[1]} phases={phases} />}
          </div>
        </div>
      )}
    </Panel>
  );
}
