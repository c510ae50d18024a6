// SPDX-License-Identifier: Apache-2.0
// Small parts that several views use.
import type { ComponentChildren } from 'preact';
import { useRef } from 'preact/hooks';
import { t, type Key } from './i18n';

export function Badge({ state }: { state: string }) {
  return <span class={`badge ${state.toLowerCase()}`}><i aria-hidden="true" />{t(state as Key)}</span>;
}

/** Tile is a number with its name. */
export function Tile({ name, children, more }: { name: string; children: ComponentChildren; more?: ComponentChildren }) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>{children}{more !== undefined && <small>{more}</small>}</dd>
    </div>
  );
}

/** Spark is the course of values as a line; it is decoration, as the number is beside it. */
export function Spark({ values, length }: { values: number[]; length: number }) {
  if (values.length < 2) return null;
  const max = Math.max(...values, 1);
  const points = values.map((v, i) => `${((length - values.length + i) / (length - 1)) * 100},${22 - (v / max) * 20}`);
  const from = ((length - values.length) / (length - 1)) * 100;
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
      <polygon points={`${from},24 ${points.join(' ')} 100,24`} />
      <polyline points={points.join(' ')} />
    </svg>
  );
}

interface Choice<T extends string> {
  value: T;
  text: ComponentChildren;
}

/** Choices is a group of which one is chosen, as buttons side by side. Arrow keys move. */
export function Choices<T extends string>({ label, value, choices, choose }: {
  label: string; value: T; choices: Choice<T>[]; choose: (value: T) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const key = (e: KeyboardEvent) => {
    const by = e.key === 'ArrowRight' || e.key === 'ArrowDown' ? 1 : e.key === 'ArrowLeft' || e.key === 'ArrowUp' ? -1 : 0;
    if (!by) return;
    e.preventDefault();
    const at = choices.findIndex((c) => c.value === value);
    const next = (at + by + choices.length) % choices.length;
    choose(choices[next].value);
    box.current?.querySelectorAll('button')[next]?.focus();
  };
  return (
    <div class="choices" role="radiogroup" aria-label={label} ref={box} onKeyDown={key}>
      {choices.map((c) => (
        <button key={c.value} type="button" role="radio" aria-checked={c.value === value}
          tabIndex={c.value === value ? 0 : -1} onClick={() => choose(c.value)}>{c.text}</button>
      ))}
    </div>
  );
}

export function Panel({ title, children, actions }: {
  title: string; children: ComponentChildren; actions?: ComponentChildren;
}) {
  return (
    <section class="panel">
      <header><h2>{title}</h2>{actions}</header>
      {children}
    </section>
  );
}
