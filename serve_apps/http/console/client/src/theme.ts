// Light and dark: as the system has it, until the reader chooses.
import { effect, signal } from "@preact/signals";

const dark = matchMedia("(prefers-color-scheme: dark)");

function chosen(): "light" | "dark" {
  const stored = localStorage.getItem("theme");
  return stored === "light" || stored === "dark" ? stored : dark.matches ? "dark" : "light";
}

export const theme = signal(chosen());
dark.addEventListener("change", () => (theme.value = chosen()));
effect(() => document.documentElement.setAttribute("data-theme", theme.value));

export function switchTheme(): void {
  theme.value = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem("theme", theme.value);
}
