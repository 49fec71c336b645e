// Numbers and times for people. An unknown value is a dash.

export const DASH = "–";

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function number(value, digits = 0) {
  if (!known(value)) return DASH;
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

/** Three digits at most, so that columns stay narrow. */
export function short(value) {
  if (!known(value)) return DASH;
  if (value >= 999_500) return `${number(value / 1e6, value < 9_950_000 ? 1 : 0)} M`;
  if (value >= 9_995) return `${number(value / 1000, value < 99_950 ? 1 : 0)} k`;
  return number(value, value > 0 && value < 9.95 ? 1 : 0);
}

export const percent = (share) => (known(share) ? `${Math.round(share * 100)} %` : DASH);

export function seconds(value) {
  if (!known(value)) return DASH;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  return span(value);
}

/** A duration: its two largest units. */
export function span(value) {
  const s = Math.max(0, Math.round(value));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const gibibytes = (bytes) => (known(bytes) ? number(bytes / 1024 ** 3, bytes < 10 * 1024 ** 3 ? 1 : 0) : DASH);

export function usd(value) {
  if (!known(value)) return "unknown";
  if (value === 0) return "0 USD";
  return value < 0.01 ? "<0.01 USD" : `${number(value, 2)} USD`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** Unix seconds as local time, with the date where it is not today. */
export function time(at) {
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return today ? CLOCK.format(date) : `${DAY.format(date)} ${CLOCK.format(date)}`;
}
