// SPDX-License-Identifier: Apache-2.0
// uPlot in the colours of the page. A chart is drawn anew once per update; it is made anew only if its series change.
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { language } from './i18n';

export interface Line {
  label: string;
  /** A CSS colour, or the name of a custom property (--good). */
  color: string;
  values: (number | null)[];
  /** Fills the area below the line; a number between 0 and 1 is its opacity. */
  fill?: number;
  step?: boolean;
  dash?: number[];
  width?: number;
}

export interface ChartProps {
  label: string;
  times: number[];
  lines: Line[];
  height: number;
  /** The newest time, and how many seconds before it are shown. */
  now: number;
  seconds: number;
  whole?: boolean;
  theme: string;
}

/** Pixels on the left and right of a chart's lines, and half the width of a time. */
const left = 44;
const right = 8;
const halfTime = 25;

const css = (name: string): string =>
  name.startsWith('--') ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name;

function translucent(color: string, opacity: number): string {
  return `color-mix(in srgb, ${color} ${Math.round(opacity * 100)}%, transparent)`;
}

export function Chart({ label, times, lines, height, now, seconds, whole, theme }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const shape = `${theme} ${height} ${lines.map((l) => l.label + l.color).join(',')} ${language()}`;

  useEffect(() => {
    const e = box.current!;
    const grid = { stroke: css('--line'), width: 1 };
    const axis = { stroke: css('--muted'), grid, ticks: { show: false }, font: '11px system-ui, sans-serif', size: 24, gap: 4 };
    const u = new uPlot({
      width: e.clientWidth, height, legend: { show: false }, padding: [8, right, 0, 0],
      cursor: { points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { time: true },
        y: { range: (_u, _min, max) => [0, whole ? Math.max(2, Math.ceil((max || 0) * 1.15)) : Math.max(1, (max || 0) * 1.1)] },
      },
      axes: [
        { ...axis, space: 80, values: (u, at) => at.map((s) => (
          // One that would be cut at the edge is left out.
          u.valToPos(s, 'x') + halfTime > u.width - left ? '' : new Date(s * 1000).toLocaleTimeString('en-GB'))) },
        { ...axis, size: left, space: 32, incrs: whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined },
      ],
      series: [{}, ...lines.map((l) => {
        const color = css(l.color);
        return {
          label: l.label, stroke: color, width: l.width ?? 1.5, dash: l.dash, points: { show: false },
          fill: l.fill ? translucent(color, l.fill) : undefined,
          paths: l.step ? uPlot.paths.stepped!({ align: 1 }) : undefined,
        };
      })],
    }, [times, ...lines.map((l) => l.values)] as uPlot.AlignedData, e);
    plot.current = u;
    const observer = new ResizeObserver(() => u.setSize({ width: e.clientWidth, height }));
    observer.observe(e);
    return () => {
      observer.disconnect();
      u.destroy();
    };
  }, [shape]);

  useEffect(() => {
    const u = plot.current;
    if (!u) return;
    u.batch(() => {
      u.setData([times, ...lines.map((l) => l.values)] as uPlot.AlignedData, false);
      u.setScale('x', { min: now - seconds, max: now });
    });
  });
  return <div class="chart" ref={box} role="img" aria-label={label} style={{ height: `${height}px` }} />;
}

/** Colours of pods, which are told apart in light and dark, and by people who see fewer colours. */
export const podColors = ['#0d9488', '#d97706', '#4f6bed', '#c2417c', '#65a30d', '#0891b2', '#9333ea', '#b45309',
  '#64748b', '#dc2626'];
