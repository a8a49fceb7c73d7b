// Light or dark theme: the system's, until the user chooses one.

const KEY = "openclaw-rl-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export const theme = () => document.documentElement.dataset.theme;

export function applyTheme() {
  document.documentElement.dataset.theme = localStorage.getItem(KEY) ?? (dark.matches ? "dark" : "light");
}

export function toggleTheme() {
  localStorage.setItem(KEY, theme() === "dark" ? "light" : "dark");
  applyTheme();
}

dark.addEventListener("change", applyTheme);
