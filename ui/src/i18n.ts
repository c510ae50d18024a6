// SPDX-License-Identifier: Apache-2.0
// The words of the page in each language. Texts that the server writes (messages, events) stay as they are.
import { span } from './format';

const en = {
  services: 'Services', wakes: 'Wakes', events: 'Events', node: 'Node', skip: 'Skip to content',
  search: 'Find a service', all: 'All', awake: 'Awake', asleep: 'Asleep', failed: 'Failed',
  Cold: 'Asleep', Waking: 'Waking', Warm: 'Awake', Frozen: 'Frozen', Stopping: 'Stopping', Failed: 'Failed',
  service: 'Service', state: 'State', pods: 'Pods', address: 'Address', flows: 'Open', perSecond: 'Rate',
  lastMinute: 'Last minute', lastWake: 'Last wake', lastPacket: 'Last packet', timeAsleep: 'Asleep', savedCPU: 'CPU saved',
  savedMemory: 'Memory saved', none: 'No service yet. Services in the manifests appear here.',
  nothingFound: 'No service matches.', image: 'Image', message: 'Message', never: 'never', notSince: 'not since {0}', ago: '{0} ago',
  connectionsPerSecond: 'Connections per second', openConnections: 'Open connections', coreHours: 'core hours',
  gibHours: 'GiB hours', busiestByMean: 'Busiest / mean', mean: 'mean', busiest: 'busiest', podsServing: 'Pods serving',
  ofDesired: 'of {0}', nowPerPod: 'Now, by pod', back: 'All services', sleepNow: 'Put to sleep', sleeping: 'Going to sleep…', stacked: 'Stacked',
  lines: 'Side by side', podsOverTime: 'Pods over time', good: 'Good', bad: 'Failed', coming: 'Starting', going: 'Stopping',
  perPod: 'Connections per second by pod', requestsPerPod: 'Requests per second by pod', requestRate: 'Req/s',
  openRequests: 'Open requests', others: 'Other pods', pod: 'Pod', nodeName: 'Node', rate: 'Conn/s', in: 'In/s',
  out: 'Out/s', age: 'Age', noPods: 'It has no pod: the next connection wakes it.', wakesOf: 'Wakes', noWakes: 'No wake yet.', noWakesSince: 'No wake since {0}, when this controller began to lead.',
  compare: 'Choose two wakes to compare them', wakeNumber: 'Wake {0}', phase: 'Phase', took: 'Took', at: 'Ended at',
  difference: 'Difference', parked: 'Parked', released: 'Released', total: 'Until it listened', result: 'Result', started: 'Began',
  noEvents: 'No event since this page was opened.', time: 'Time', event: 'Event', noSuchService: 'There is no service {0}.',
  connecting: 'Connecting…', live: 'Live', lost: 'Connection lost. Trying again…',
  denied: 'The token of this page is no longer valid. Open the address that wangell has printed.',
  refused: 'Refused. Trying again…',
  busy: 'Too many browsers watch. Trying again…', theme: 'Theme', auto: 'Automatic', light: 'Light', dark: 'Dark',
  language: 'Language', tables: 'Tables of the gate', table: 'Table', used: 'Used', size: 'Room', counters: 'Counters',
  counter: 'Counter', value: 'Value', perSecondShort: 'per second', interfaces: 'Interfaces', parkedNow: 'Parked now',
  pressure: 'Scarce', noGates: 'Only users who may see the services of all namespaces see the state of the nodes.',
  silentNode: 'Its daemon has not answered.', silentNodes: 'No answer: {0}', fullest: 'Fullest table', nodes: 'Nodes',
  noDaemon: 'No gate is attached yet.', window: 'Time span', minutes: '{0} min', filter: 'Filter', chart: 'Chart',
  idleTimeout: 'Idle timeout', running: 'running', warm: 'woke', cancelled: 'cancelled', resultFailed: 'failed',
  peers: 'Who connects', client: 'Client', to: 'To', noPeers: 'Nobody is connected.', otherConnections: '{0} more connections',
  unknownPeers: 'Only users who may see the services of all namespaces see who connects.', connections: 'Connections',
  serving: 'serving', frozen: 'frozen', starting: 'starting', draining: 'draining', stopping: 'stopping', exited: 'ended',
  sortBy: 'Sort by {0}', rowsShown: '{0} of {1} services', saved: 'Saved', byMean: 'Against the mean', fit: 'in use: {0} %',
};

export type Key = keyof typeof en;

const ja: Record<Key, string> = {
  services: 'サービス', wakes: '起動', events: 'イベント', node: 'ノード', skip: '本文へ移動',
  search: 'サービスを検索', all: 'すべて', awake: '稼働中', asleep: '休止中', failed: '失敗',
  Cold: '休止中', Waking: '起動中', Warm: '稼働中', Frozen: '凍結中', Stopping: '停止中', Failed: '失敗',
  service: 'サービス', state: '状態', pods: 'Pod', address: 'アドレス', flows: '接続中', perSecond: '毎秒',
  lastMinute: '直近1分', lastWake: '前回の起動', lastPacket: '最終通信', timeAsleep: '休止時間', savedCPU: '節約したCPU',
  savedMemory: '節約したメモリ', none: 'サービスはまだありません。マニフェストに追加すると表示されます。',
  nothingFound: '一致するサービスはありません。', image: 'イメージ', message: 'メッセージ', never: 'なし', notSince: '{0}以降なし', ago: '{0}前',
  connectionsPerSecond: '毎秒の接続数', openConnections: '接続中', coreHours: 'コア時間',
  gibHours: 'GiB時間', busiestByMean: '最大 / 平均', mean: '平均', busiest: '最大', podsServing: '稼働Pod',
  ofDesired: '/ {0}', nowPerPod: '現在（Podごと）', back: 'サービス一覧', sleepNow: '休止させる', sleeping: '休止処理中…', stacked: '積み上げ',
  lines: '並べて表示', podsOverTime: 'Pod数の推移', good: '正常', bad: '失敗', coming: '起動中', going: '停止中',
  perPod: 'Podごとの毎秒の接続数', requestsPerPod: 'Podごとの毎秒のリクエスト数', requestRate: 'リクエスト/秒',
  openRequests: '処理中のリクエスト', others: 'その他のPod', pod: 'Pod', nodeName: 'ノード', rate: '接続/秒', in: '受信/秒',
  out: '送信/秒', age: '経過', noPods: 'Podはありません。次の接続で起動します。', wakesOf: '起動', noWakes: '起動の記録はまだありません。',
  noWakesSince: 'このコントローラーがリーダーになった{0}以降、起動の記録はありません。',
  compare: '比較する起動を2つ選んでください', wakeNumber: '起動 {0}', phase: '段階', took: '所要', at: '完了時点',
  difference: '差', parked: '保留', released: '解放', total: '待ち受け開始まで', result: '結果', started: '開始',
  noEvents: 'ページを開いてからイベントはありません。', time: '時刻', event: 'イベント', noSuchService: 'サービス {0} はありません。',
  connecting: '接続しています…', live: 'ライブ', lost: '接続が切れました。再接続しています…',
  denied: 'このページのトークンは無効です。wangell が表示したアドレスを開いてください。',
  refused: '拒否されました。再試行しています…',
  busy: '閲覧中のブラウザーが多すぎます。再試行しています…', theme: 'テーマ', auto: '自動', light: 'ライト', dark: 'ダーク',
  language: '言語', tables: 'ゲートのテーブル', table: 'テーブル', used: '使用', size: '容量', counters: 'カウンター',
  counter: 'カウンター', value: '値', perSecondShort: '毎秒', interfaces: 'インターフェース', parkedNow: '保留中',
  pressure: '不足', noGates: 'ノードの状態は、すべての名前空間のサービスを閲覧できる人だけに表示されます。',
  silentNode: 'このノードのデーモンから応答がありません。', silentNodes: '応答なし: {0}', fullest: '最も埋まっているテーブル', nodes: 'ノード',
  noDaemon: 'ゲートはまだ接続されていません。', window: '期間', minutes: '{0}分', filter: '絞り込み', chart: 'グラフ',
  idleTimeout: 'アイドル時間', running: '進行中', warm: '成功', cancelled: '取り消し', resultFailed: '失敗',
  peers: '接続元', client: 'クライアント', to: '接続先', noPeers: '接続はありません。', otherConnections: 'ほかに{0}件の接続',
  unknownPeers: '接続元は、すべての名前空間のサービスを閲覧できる人だけに表示されます。', connections: '接続',
  serving: '稼働中', frozen: '凍結中', starting: '起動中', draining: '切り離し中', stopping: '停止中', exited: '終了',
  sortBy: '{0}で並べ替え', rowsShown: '{1}件中{0}件', saved: '節約', byMean: '平均との比較', fit: '使用率 {0} %',
};

export const languages = { en: 'English', ja: '日本語' } as const;
export type Language = keyof typeof languages;
const texts: Record<Language, Record<Key, string>> = { en, ja };
const units: Record<Language, Record<'d' | 'h' | 'm' | 's', string>> = {
  en: { d: ' d', h: ' h', m: ' min', s: ' s' }, ja: { d: '日', h: '時間', m: '分', s: '秒' },
};

let current: Language = 'en';

export const language = (): Language => current;

/** setLanguage changes the language of the page. */
export function setLanguage(l: Language): void {
  current = l;
  document.documentElement.lang = l;
}

/** preferred is the first language of the browser that the page has. */
export function preferred(): Language {
  for (const l of navigator.languages) {
    const short = l.slice(0, 2) as Language;
    if (short in texts) return short;
  }
  return 'en';
}

/** t is a text in the present language, with {0}, {1} replaced. */
export function t(key: Key, ...args: (string | number)[]): string {
  return texts[current][key].replace(/\{(\d)\}/g, (_, i: string) => String(args[Number(i)]));
}

/** duration writes seconds in at most two units. */
export function duration(seconds: number): string {
  return span(seconds).map(([n, unit]) => `${n}${units[current][unit]}`).join(current === 'ja' ? '' : ' ');
}

/** ago writes how long a Unix time in seconds is over; if it is 0, since when nothing is known to have happened. */
export function ago(then: number, now: number, history?: number): string {
  if (!then) return history ? t('notSince', clock(history * 1000)) : t('never');
  return t('ago', duration(now / 1000 - then));
}

/** clock writes the time of day of Unix milliseconds. */
export function clock(ms: number): string {
  return new Date(ms).toLocaleTimeString(current === 'ja' ? 'ja-JP' : 'en-GB');
}
