// A Worker for pages that are opened from a disk, where browsers allow none: a hidden frame that runs
// its script. The theme's search is written for Workers.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.scope = frame.contentWindow;
    this.scope.document.open();
    this.scope.document.write(`<body><script>
      postMessage = (data) => parent.postMessage(data, "*");
      importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((resolve) => {
        const script = document.createElement("script");
        script.src = url;
        script.onload = resolve;
        document.body.appendChild(script);
      })));
    <\/script><script src="${url}"><\/script></body>`);
    this.scope.document.close();
    this.loaded = new Promise((resolve) => { this.scope.onload = resolve; });
    window.addEventListener("message", (event) => {
      if (event.source !== this.scope) return;
      event.stopImmediatePropagation();
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      this.onmessage?.(message);
    });
  }

  postMessage(data) {
    this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {}
}

if (location.protocol === "file:") window.Worker = FrameWorker;
