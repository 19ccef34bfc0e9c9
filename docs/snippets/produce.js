// Send two prompts to a run that is on: `node produce.js slime-runs/RUN/nats/producer.json`.
// Needs `npm install @nats-io/transport-node` alone.
const { readFileSync } = require("node:fs");
const { setTimeout: pause } = require("node:timers/promises");
const { connect } = require("@nats-io/transport-node");

async function main(credentials) {
  const to = JSON.parse(readFileSync(credentials));
  const client = await connect({ servers: to.url, user: to.user, pass: to.password });
  const prompts = [3, 4].map((n) => ({ key: `quiz-${n}`, prompt: `What is ${n} + ${n}?`, label: String(2 * n) }));
  for (;;) {
    try {
      const reply = await client.request(`slime.${to.run}.inbox.prompts`, JSON.stringify(prompts), { timeout: 30000 });
      console.log(reply.json()); // { accepted: true, groups: [ 'inbox-...', 'inbox-...' ] }
      break;
    } catch (error) {
      if (!error.isNoResponders?.()) throw error; // the run does not take prompts yet
      await pause(1000);
    }
  }
  await client.close();
}

main(process.argv[2]);
