CREATE INDEX turns_by_user ON turns ("user", seq);
