// SPDX-License-Identifier: Apache-2.0
// A table that draws only the rows that are visible, for thousands of them.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { t, type Key } from './i18n';

export interface Column<T> {
  key: string;
  title: Key;
  /** Numbers are aligned to the right. */
  numeric?: boolean;
  /** A column that only wide windows show: 1 from 700, 2 from 1000, 3 from 1250 pixels. */
  wide?: 1 | 2 | 3;
  compare?: (a: T, b: T) => number;
  /** The first click sorts from the greatest to the least. */
  descending?: boolean;
  cell: (item: T) => ComponentChildren;
}

export interface Sort {
  key: string;
  down: boolean;
}

export function sorted<T>(items: T[], columns: Column<T>[], sort: Sort): T[] {
  const compare = columns.find((c) => c.key === sort.key)?.compare;
  if (!compare) return items;
  return [...items].sort((a, b) => (sort.down ? -compare(a, b) : compare(a, b)));
}

interface Props<T> {
  label: string;
  items: T[];
  columns: Column<T>[];
  id: (item: T) => number;
  sort: Sort;
  onSort: (sort: Sort) => void;
  rowHeight: number;
  /** Rows beyond this height are scrolled inside the table; without it, with the page. */
  maxHeight?: number;
  open?: (item: T) => void;
}

/** Rows that are drawn above and below the visible ones. */
const spare = 6;

export function List<T>({ label, items, columns, id, sort, onSort, rowHeight, maxHeight, open }: Props<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const e = box.current;
    if (!e) return;
    const look = () => {
      // With the page, the top of the table is above the window by as much as was scrolled.
      const top = maxHeight ? e.scrollTop : Math.max(0, -e.getBoundingClientRect().top);
      const height = maxHeight ?? window.innerHeight;
      setView((v) => (Math.abs(v.top - top) < rowHeight / 2 && v.height === height ? v : { top, height }));
    };
    look();
    const on: EventTarget = maxHeight ? e : window;
    on.addEventListener('scroll', look, { passive: true });
    window.addEventListener('resize', look);
    return () => {
      on.removeEventListener('scroll', look);
      window.removeEventListener('resize', look);
    };
  }, [maxHeight, rowHeight]);

  const first = Math.max(0, Math.min(Math.floor(view.top / rowHeight) - spare, items.length - 1));
  const last = Math.min(items.length, Math.ceil((view.top + view.height) / rowHeight) + spare);
  const shown = items.slice(first, last);
  const move = (e: KeyboardEvent) => {
    const row = (e.target as HTMLElement).closest('tr');
    const to = e.key === 'ArrowDown' ? row?.nextElementSibling : e.key === 'ArrowUp' ? row?.previousElementSibling : null;
    const target = to?.querySelector<HTMLElement>('a, button');
    if (!target) return;
    e.preventDefault();
    target.focus();
  };
  return (
    <div class="list" ref={box} style={maxHeight ? { maxHeight: `${maxHeight}px`, overflowY: 'auto' } : undefined}
      tabIndex={maxHeight && items.length * rowHeight > maxHeight ? 0 : undefined}
      role={maxHeight ? 'region' : undefined} aria-label={maxHeight ? label : undefined}>
      <table aria-rowcount={items.length + 1} aria-label={label} onKeyDown={move}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((c) => (
              <th key={c.key} scope="col" class={classes(c)}
                aria-sort={c.key === sort.key ? (sort.down ? 'descending' : 'ascending') : undefined}>
                {c.compare ? (
                  <button type="button" onClick={() => onSort(
                    { key: c.key, down: c.key === sort.key ? !sort.down : c.descending ?? false })}>
                    {t(c.title)}
                    <span class="arrow" aria-hidden="true">{c.key === sort.key ? (sort.down ? '↓' : '↑') : ''}</span>
                  </button>
                ) : t(c.title)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <tr aria-hidden="true" style={{ height: `${first * rowHeight}px` }}><td colSpan={columns.length} /></tr>}
          {shown.map((item, i) => (
            <tr key={id(item)} aria-rowindex={first + i + 2} style={{ height: `${rowHeight}px` }}
              class={open ? 'link' : undefined}
              onClick={open && ((e) => { if (!(e.target as HTMLElement).closest('a, button')) open(item); })}>
              {columns.map((c) => <td key={c.key} class={classes(c)}>{c.cell(item)}</td>)}
            </tr>
          ))}
          {last < items.length && (
            <tr aria-hidden="true" style={{ height: `${(items.length - last) * rowHeight}px` }}><td colSpan={columns.length} /></tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

const classes = <T,>(c: Column<T>): string => `${c.numeric ? 'num ' : ''}${c.wide ? `wide${c.wide}` : ''}`;
