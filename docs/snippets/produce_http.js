// Send two prompts to a run's gateway, and follow the first: `node produce_http.js http://127.0.0.1:8500 demo TOKEN`.
async function main(gateway, run, token) {
  const url = `${gateway}/v1/runs/${run}`;
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const prompts = [3, 4].map((n) => ({ key: `quiz-${n}`, prompt: `What is ${n} + ${n}?`, label: String(2 * n) }));
  for (;;) {
    const answer = await fetch(`${url}/prompts`, { method: "POST", headers, body: JSON.stringify(prompts) });
    if (answer.status === 202) {
      const { groups } = await answer.json();
      const events = await fetch(`${url}/groups/${groups[0].group}/events`, { headers });
      for await (const event of events.body.pipeThrough(new TextDecoderStream())) process.stdout.write(event);
      return;
    }
    if (![429, 503].includes(answer.status)) throw new Error(`${answer.status} ${await answer.text()}`);
    await new Promise((again) => setTimeout(again, 1000 * answer.headers.get("retry-after")));
  }
}

main(...process.argv.slice(2));
