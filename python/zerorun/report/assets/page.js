"use strict";
(() => {
  const COLORS = ["#2f81f7", "#e5534b", "#3fb950", "#d29922", "#a371f7", "#39c5cf", "#db61a2", "#8b949e"];
  const PARTS = [
    ["forward_ms", "forward"], ["backward_ms", "backward"], ["fwd_bwd_ms", "forward and backward"],
    ["reduce_ms", "waiting for reductions"], ["gather_ms", "waiting for gathers"],
    ["comm_ms", "communication"], ["optimizer_ms", "optimizer"], ["offload_ms", "waiting for offloading"],
    ["other_ms", "outside the engine"], ["data_ms", "loading data"], ["checkpoint_ms", "saving"],
  ];
  const CHARTS = [
    { id: "loss", title: "Loss", names: ["loss"] },
    { id: "lr", title: "Learning rate", names: ["lr"] },
    { id: "norm", title: "Gradient norm", unit: "before clipping", names: ["grad_norm"], log: true },
    { id: "scale", title: "Loss scale", unit: "dots: skipped steps", names: ["loss_scale"], skipped: true, varied: true, log: true },
    { id: "tokens", title: "Throughput", unit: "tokens/s", names: ["tokens_per_s"] },
    { id: "samples", title: "Throughput", unit: "samples/s", names: ["samples_per_s"], unless: "tokens_per_s" },
    { id: "mfu", title: "Model FLOPs utilisation", unit: "of measured products", names: ["mfu"] },
    { id: "step", title: "Time of a step", unit: "ms", names: ["step_ms"] },
    { id: "parts", title: "Parts of a step", unit: "ms", parts: true },
    { id: "memory", title: "Memory of rank 0", unit: "GiB", gib: true,
      names: ["model_state_bytes", "rss_bytes", "gpu_bytes"] },
  ];
  const KINDS = { compute: 2, wait: 1, optimizer: 3, reduction: 0, gather: 4, agreement: 7,
    communication: 5, copy: 6, disk: 6, step: 7 };  // places in COLORS
  const LABELS = { model_state_bytes: "model states", rss_bytes: "process", gpu_bytes: "GPU",
    loss: "loss", lr: "lr", grad_norm: "norm", loss_scale: "scale", tokens_per_s: "tokens/s",
    samples_per_s: "samples/s", step_ms: "ms", mfu: "MFU" };

  let data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const logarithmic = new Set(["scale"]);
  let plots = [];

  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const color = (i) => COLORS[i % COLORS.length];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = () => data.runs.map((run, i) => ({ run, i })).filter(({ run }) => !hidden.has(run.name));
  const bytes = (n) => {
    if (n === null || n === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (n >= 1024 && unit + 1 < units.length) { n /= 1024; ++unit; }
    return `${unit ? n.toFixed(2) : Math.round(n)} ${units[unit]}`;
  };
  const number = (n, digits = 2) => (n === null || n === undefined ? "–" : n.toFixed(digits));

  function tableOf(run, chart) {
    const columns = run.columns;
    if (chart.varied && !run.skipped.length && columns.loss_scale?.every((v) => v === 1)) return null;
    const scale = chart.gib ? 2 ** -30 : 1;
    const names = chart.parts
      ? PARTS.filter(([name]) => columns[name] &&
          !(name === "comm_ms" && columns.reduce_ms)).map(([name]) => name)
      : chart.names.filter((name) => columns[name] && !(chart.unless && columns[chart.unless]));
    if (!names.length) return null;
    const values = names.map((name) => columns[name].map((v) => (v === null ? null : v * scale)));
    return { names, table: [columns.step, ...values] };
  }

  function seriesOf(chart) {
    const tables = [], series = [];
    let part = 0;
    for (const { run, i } of shown()) {
      const found = tableOf(run, chart);
      if (!found) continue;
      tables.push(found.table);
      found.names.forEach((name, k) => {
        const label = chart.parts ? PARTS.find(([own]) => own === name)[1] : LABELS[name];
        const several = data.runs.length > 1 && !chart.parts;
        series.push({
          label: several ? `${run.name}: ${label}` : label,
          stroke: chart.parts || (found.names.length > 1 && data.runs.length === 1)
            ? color(chart.parts ? part++ : k) : color(i),
          dash: several && k > 0 ? [6, 3 * k] : undefined,
          width: 1.5, spanGaps: true, points: { show: found.table[0].length < 40 },
        });
      });
      if (chart.skipped && run.skipped.length) {
        tables.push([run.skipped, run.skipped.map((step) => {
          const at = run.columns.step.findIndex((s) => s >= step);
          return run.columns.loss_scale[at < 0 ? run.columns.step.length - 1 : at];
        })]);
        series.push({ label: "skipped", stroke: color(i), width: 0, paths: () => null,
          points: { show: true, size: 8, fill: color(1) } });
      }
      if (chart.parts) break;
    }
    return tables.length ? { table: uPlot.join(tables), series } : null;
  }

  function draw(chart, panel) {
    const found = seriesOf(chart);
    if (!found) return null;
    const axis = { stroke: style("--faint"), grid: { stroke: style("--line"), width: 1 },
      ticks: { stroke: style("--line"), width: 1 } };
    const positive = found.table.slice(1).every((column) => column.every((v) => v == null || v > 0));
    const distr = logarithmic.has(chart.id) && positive ? 3 : 1;
    return new uPlot({
      width: panel.clientWidth - 24, height: 240, cursor: { sync: { key: "step" } },
      scales: { x: { time: false }, y: { distr } },
      axes: [{ ...axis }, { ...axis, size: 72,
        values: (_, ticks) => ticks.map((t) => (t === null ? "" : short(t))) }],
      series: [{ label: "step" }, ...found.series.map((s) => ({ ...s,
        value: (_, v) => (v === null || v === undefined ? "–" : short(v)) }))],
    }, found.table, panel);
  }
  function short(v) {
    const size = Math.abs(v);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return v.toExponential(1);
    return size >= 1e4 ? `${(v / 1e3).toFixed(1)}k` : String(Number(v.toPrecision(4)));
  }

  function drawCharts() {
    for (const { plot } of plots) plot.destroy();
    plots = [];
    const charts = document.getElementById("charts");
    charts.replaceChildren();
    for (const chart of CHARTS) {
      if (!seriesOf(chart)) continue;
      const panel = make("div", null, { class: "panel", id: `chart-${chart.id}` });
      const head = make("header");
      const title = make("h2", chart.title);
      const of = chart.parts && shown().length > 1 ? ` of ${shown()[0].run.name}` : "";
      if (chart.unit) title.append(" ", make("span", chart.unit + of));
      head.append(title);
      if (chart.log) {
        const button = make("button", "log", { type: "button", "aria-label": `${chart.title}: logarithmic`,
          "aria-pressed": String(logarithmic.has(chart.id)) });
        button.addEventListener("click", () => {
          if (!logarithmic.delete(chart.id)) logarithmic.add(chart.id);
          drawCharts();
          document.querySelector(`#chart-${chart.id} button`).focus();
        });
        head.append(button);
      }
      panel.append(head);
      charts.append(panel);
      plots.push({ plot: draw(chart, panel), panel });
    }
    for (const { run } of shown()) if (run.timeline) drawTimeline(run, charts);
    document.body.dataset.charts = plots.length;
  }

  // Rows of spans: uPlot has the axes, the zoom and the cursor, the hook draws.
  function drawTimeline(run, charts) {
    const { rows, kinds, labels, steps, duration_ms: duration } = run.timeline;
    const few = run.timeline.left_out + run.timeline.dropped;
    const untimed = run.timeline.untimed ? `; ${run.timeline.untimed} collectives on GPU streams have no times` : "";
    const missing = `${few ? `; ${few} shorter or later spans are left out` : ""}${untimed}`;
    const colors = kinds.map((kind) => color(KINDS[kind] ?? 7));
    const panel = make("div", null, { class: "panel wide" });
    const head = make("header");
    const title = make("h2", "Timeline");
    title.append(" ", make("span", `steps ${steps[0]} to ${steps[1]}` +
      `${data.runs.length > 1 ? ` of ${run.name}` : ""}, ms; drag to zoom${missing}`));
    const zooms = make("div", null, { class: "zooms" });
    head.append(title, zooms);
    const legend = make("p", null, { class: "legend" });
    kinds.forEach((kind, i) => {
      legend.append(make("span", null, { class: "key", style: `background:${colors[i]}` }), ` ${kind}  `);
    });
    const told = make("p", "\u00a0", { class: "legend", role: "status" });
    panel.append(head, legend, told);
    charts.append(panel);
    const row = (u) => u.bbox.height / rows.length;
    const hooks = {
      draw: [(u) => {
        const { ctx, bbox } = u;
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
        ctx.clip();
        rows.forEach(({ spans }, i) => {
          const y = bbox.top + i * row(u) + 1;
          for (const [begin, length, kind] of spans) {
            const x = u.valToPos(begin, "x", true);
            ctx.fillStyle = colors[kind];
            ctx.fillRect(x, y, Math.max(1, u.valToPos(begin + length, "x", true) - x), row(u) - 2);
          }
        });
        ctx.restore();
      }],
      setCursor: [(u) => {
        const { left, top } = u.cursor;
        const at = left >= 0 ? rows[Math.floor(top * devicePixelRatio / row(u))] : undefined;
        const time = u.posToVal(left, "x");
        const span = at?.spans.findLast(([begin, length]) => begin <= time && time <= begin + length);
        told.textContent = span
          ? `rank ${at.rank}, ${at.name}: ${labels[span[3]]}, ${short(span[1])} ms` : "\u00a0";
      }],
    };
    const axis = { stroke: style("--faint"), grid: { stroke: style("--line"), width: 1 },
      ticks: { stroke: style("--line"), width: 1 } };
    const height = 60 + 18 * rows.length;
    const plot = new uPlot({
      width: panel.clientWidth - 24, height, hooks, legend: { show: false },
      cursor: { y: false, points: { show: false } },
      scales: { x: { time: false }, y: { range: [0, rows.length], dir: -1 } },
      axes: [axis, { ...axis, size: 110, grid: { show: false },
        splits: () => rows.map((_, i) => i + 0.5),
        values: () => rows.map(({ rank, name }) => `${rank} ${name}`) }],
      series: [{}, { show: false }],
    }, [[0, duration], [0, rows.length]], panel);
    const zoom = (name, min, max) => {
      const button = make("button", name, { type: "button", "aria-label": `Timeline: ${name}` });
      button.addEventListener("click", () => plot.setScale("x", { min, max }));
      zooms.append(button);
    };
    zoom("all", 0, duration);
    for (const [begin, length, , label] of rows.find(({ name }) => name === "steps")?.spans ?? []) {
      zoom(labels[label], begin, begin + length);
    }
    plots.push({ plot, panel, height });
  }

  function table(caption, head, rows, classes = []) {
    const panel = make("div", null, { class: "panel" });
    if (caption) panel.append(make("p", caption, { class: "caption" }));
    const scroll = make("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "table" });
    const grid = make("table");
    const top = make("tr");
    head.forEach((name) => top.append(make("th", name, { scope: "col" })));
    grid.append(make("thead"), make("tbody"));
    grid.tHead.append(top);
    rows.forEach((row, i) => {
      const line = make("tr", null, classes[i] ? { class: classes[i] } : {});
      row.forEach((cell) => line.append(make("td", cell)));
      grid.tBodies[0].append(line);
    });
    scroll.append(grid);
    panel.append(scroll);
    return panel;
  }

  // Ranks of a host that share memory gather without a copy.
  const shareOf = (rate, limit) =>
    (rate > 2 * limit ? "nothing is copied" : `${(100 * rate / limit).toFixed(0)} % of ${number(limit)}`);

  function folded(title, panel) {
    const box = make("details", null, { class: "panel" });
    panel.className = "";
    box.append(make("summary", title), panel);
    return box;
  }

  function drawTables() {
    const tables = document.getElementById("tables");
    const open = new Set([...tables.querySelectorAll("details[open] > summary")].map((s) => s.textContent));
    tables.replaceChildren();
    for (const { run } of shown()) {
      const of = data.runs.length > 1 ? ` of ${run.name}` : "";
      const categories = [...new Set(run.ranks.flatMap((rank) => Object.keys(rank.memory)))].sort();
      const planned = Object.keys(run.plan).length
        ? [["plan", ...categories.map((name) => bytes(run.plan[name])), "–", "–", "–", "–"]] : [];
      tables.append(table(`Ranks${of}: most memory by category, and mean times`,
        ["rank", ...categories, "model states", "process", "step ms", "comm ms"],
        [...run.ranks.map((rank) => [rank.rank, ...categories.map((name) => bytes(rank.memory[name])),
          bytes(rank.model_state), bytes(rank.peak_rss), number(rank.step_ms), number(rank.comm_ms)]),
        ...planned]));
      const whole = run.breakdown.step_ms;
      const parts = PARTS.filter(([name]) => run.breakdown[name] !== undefined &&
        !(name === "comm_ms" && run.breakdown.reduce_ms !== undefined));
      if (parts.length) {
        tables.append(table(`Mean step${of}: ${number(whole)} ms on rank ${run.ranks[0].rank}`,
          ["part", "ms", "of a step", "hidden ms"],
          parts.map(([name, label]) => [label, number(run.breakdown[name]),
            whole ? `${(100 * run.breakdown[name] / whole).toFixed(1)} %` : "–",
            number(run.breakdown[name.replace("_ms", "_hidden_ms")])])));
      }
      const collectives = Object.entries(run.collectives);
      if (collectives.length) {
        tables.append(table(`Collectives of rank ${run.ranks[0].rank}${of}: bytes of the full tensors, and what they reached ` +
          "with waiting for other ranks, beside what large ones reached before the first step",
          ["collective", "calls", "bytes", "calls a step", "bytes a step", "GB/s", "of the limit"],
          collectives.map(([name, [calls, nbytes, ms]]) => {
            const rate = ms > 0 ? nbytes / ms / 1e6 : undefined;
            const limit = run.limits[name] / 1e9;
            return [name, calls, bytes(nbytes), number(calls / run.steps, 1), bytes(nbytes / run.steps),
              number(rate), rate && limit ? shareOf(rate, limit) : "–"];
          })));
      }
      if (run.timeline) {
        const part = (hidden) => (hidden === null ? ["–", "–"]
          : [`${(100 * hidden).toFixed(1)} %`, `${(100 - 100 * hidden).toFixed(1)} %`]);
        tables.append(table(`Communication${of} in the timeline's steps: beside computation, and exposed`,
          ["rank", "reductions hidden", "exposed", "gathers hidden", "exposed"],
          run.timeline.hidden.map((one, rank) => [rank, ...part(one.reductions), ...part(one.gathers)])));
      }
      const environment = Object.entries(run.environment);
      if (environment.length) {
        tables.append(folded(`Environment${of}`, table("", ["what", "value"], environment)));
      }
      if (run.config.length) {
        tables.append(folded(`Configuration${of}`, table("Faint: defaults", ["key", "value"],
          run.config.map(([key, value]) => [key, JSON.stringify(value)]),
          run.config.map(([, , isDefault]) => (isDefault ? "default" : "")))));
      }
    }
    tables.querySelectorAll("details").forEach((box) => {
      box.open = open.has(box.firstChild.textContent);
    });
  }

  function drawHead() {
    const summary = data.runs.map((run) => {
      const ranks = run.world_size || run.ranks.length;
      const last = run.columns.loss ? run.columns.loss.findLast((v) => v !== null) : undefined;
      const size = run.parameters ? `, ${(run.parameters / 1e6).toPrecision(3)} M parameters` : "";
      const loss = last === undefined ? "" : `, last loss ${last.toPrecision(4)}`;
      return `${run.name}: ${run.steps} steps on ${ranks} rank${ranks === 1 ? "" : "s"}${size}${loss}`;
    });
    document.getElementById("summary").textContent = summary.join(" · ");
    const runs = document.getElementById("runs");
    runs.replaceChildren();
    if (data.runs.length > 1) {
      data.runs.forEach((run, i) => {
        const label = make("label");
        const box = make("input", null, { type: "checkbox" });
        box.checked = !hidden.has(run.name);
        box.addEventListener("change", () => {
          if (box.checked) hidden.delete(run.name); else hidden.add(run.name);
          drawBody();
        });
        label.append(box, make("span", null, { class: "key", style: `background:${color(i)}` }), run.name);
        runs.append(label);
      });
    }
    document.getElementById("footer").textContent =
      `zerorun ${data.version}${data.live ? ", following the run" : ""}. Charts: uPlot (MIT).`;
  }

  function drawBody() {
    const list = document.querySelector("#findings ul");
    list.replaceChildren(...shown().flatMap(({ run }) => run.findings.map((text) =>
      make("li", data.runs.length > 1 ? `${run.name}: ${text}` : text))));
    document.getElementById("findings").hidden = !list.children.length;
    drawCharts();
    drawTables();
  }

  drawHead();
  drawBody();
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      for (const { plot, panel, height } of plots) {
        plot.setSize({ width: panel.clientWidth - 24, height: height ?? 240 });
      }
    }, 50);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  if (data.live) {
    setInterval(async () => {
      if (document.hidden) return;
      try {
        const answer = await fetch(`data.json${location.search}`);
        if (!answer.ok) return;
        const news = await answer.json();
        if (JSON.stringify(news.runs) === JSON.stringify(data.runs)) return;
        data = news;
        drawHead();
        drawBody();
      } catch {
        document.getElementById("footer").textContent = "The server has ended; this is its last answer.";
      }
    }, 2000);
  }
})();
