// URLs of the views.
export function to(run: string, view: string, id = "", query: Record<string, string | string[]> = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const one of [value].flat()) if (one) words.append(name, one);
  const search = words.toString();
  const path = `/runs/${encodeURIComponent(run)}/${view}${id ? `/${encodeURIComponent(id)}` : ""}`;
  return search ? `${path}?${search}` : path;
}
