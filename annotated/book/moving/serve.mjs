// serve: the work of the Worker, or of the page where there is none. It hears
// { go: changes, run, word }, { word } and { pause }, and tells several times a second
// { run, step, losses, exact, first, text, maps, word, done, kernel, seconds }: the losses
// since it last told, the share of new words that are right, and the step, of every
// fifth, at which the word is first written backwards.

// steps between two looks at the word
export const EVERY = 5;
// and between two looks at new words, so many; at the end more of them
export const JUDGED = 20;
export const FEW = 32;
export const MANY = 200;

/** Trains what begin(changes) returns, in slices of time, so that it can hear what is
 *  asked in between. port is the Worker itself, or what stands for it. */
export function serve(port, begin) {
  let learner, word = "", paused = true, asked = false, waiting = false, run = 0;
  let losses = [], exact = 0, told = 0, spent = 0, due = JUDGED, first = null;
  const tell = (done) => {
    if (done || learner.steps >= due) {
      exact = learner.exact(done ? MANY : FEW);
      due = learner.steps + JUDGED;
    }
    port.postMessage({ run, step: learner.steps, losses, exact, first, ...learner.write(word), word,
      done, kernel: learner.kernel, seconds: spent / 1000 });
    losses = [];
    asked = false;
    told = performance.now();
  };
  const slice = () => {
    waiting = false;
    const start = performance.now(), { steps } = learner.set;
    while (!paused && learner.steps < steps) {
      losses.push(learner.step());
      if (first === null && learner.steps % EVERY === 0 && learner.isRight(word)) first = learner.steps;
      if (performance.now() - start > port.slice) break;
    }
    spent += performance.now() - start;
    const done = learner.steps === steps;
    if (asked || losses.length && (done || performance.now() - told > 150)) tell(done);
    paused ||= done;
    if (!paused) wait();
  };
  const wait = () => {
    if (!waiting && learner) setTimeout(slice);
    waiting = true;
  };
  port.onmessage = ({ data }) => {
    if (data.word && data.word !== word) [word, first] = [data.word, null];
    paused = data.pause ?? paused;
    if (data.go) {
      learner = begin(data.go);
      [losses, run, spent, due, first] = [[], data.run, 0, JUDGED, null];
    }
    asked = true;
    wait();
  };
}
